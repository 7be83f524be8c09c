"""What the result needs is told from what it does not, and what is changed in place is noticed."""

from collections.abc import Callable

import pytest
import torch

from aotlm.capture.nodes import is_plain, needed


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _graph(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.fx.Graph:
    return torch.export.export(_Module(function), (torch.ones(4, 6),), strict=False).graph


def _unused(x: torch.Tensor) -> torch.Tensor:
    x.cumsum(0)
    return x * 2.0


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2.0
    y.add_(1.0)
    return y


def _in_place_of_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2.0
    y[1:].mul_(3.0)
    return y


def test_what_nobody_reads_is_not_needed() -> None:
    graph = _graph(_unused)
    assert any("cumsum" in str(node.target) for node in graph.nodes)
    assert [str(node.target) for node in needed(graph)[1:-1]] == ["aten.mul.Tensor"]
    assert is_plain(graph)


@pytest.mark.parametrize("function", [_in_place, _in_place_of_a_view])
def test_what_is_changed_in_place_is_needed_and_not_plain(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    graph = _graph(function)
    assert any("_.Tensor" in str(node.target) for node in needed(graph))
    assert not is_plain(graph)


def test_an_op_without_a_graph_op_is_not_plain() -> None:
    assert not is_plain(_graph(lambda x: x.cumsum(0)))


def test_several_results_of_one_op_are_plain() -> None:
    assert is_plain(_graph(lambda x: x.chunk(2)[0] + x.split(2)[1]))
