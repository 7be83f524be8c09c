"""A model becomes one program for any number of tokens, or a sentence that names its line."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aotlm.capture import attention
from aotlm.capture.importer import to_graph
from aotlm.capture.lines import is_of_model, raising_line
from aotlm.capture.trace import Program, trace_module
from aotlm.errors import AotlmError
from aotlm.graph.ir import Graph

Tensor = torch.Tensor
Forward = Callable[[Tensor, Tensor], Tensor]


class _Model(torch.nn.Module):
    """Embeds its tokens; the rest is a function of what is embedded and of the tokens."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.embed, self.function = torch.nn.Embedding(9, 8), function

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.function(self.embed(input_ids), input_ids))


def _program(function: Forward) -> Program:
    attention.register()
    return trace_module(lambda: _Model(function).requires_grad_(False), dict, "Mine")


def _graph(function: Forward) -> Graph:
    return to_graph(_program(function))


def _refusal(function: Forward) -> str:
    with pytest.raises(AotlmError) as caught:
        _graph(function)
    return str(caught.value)


def _loop(x: Tensor, ids: Tensor) -> Tensor:
    for _ in range(x.shape[1]):
        x = x + 1.0
    return x


def _long(x: Tensor, ids: Tensor) -> Tensor:
    return x * 2.0 if x.shape[1] > 300 else x * 3.0


def _one(x: Tensor, ids: Tensor) -> Tensor:
    return x * 2.0 if x.shape[1] == 1 else x * 3.0


def _odd(x: Tensor, ids: Tensor) -> Tensor:
    return x * 2.0 if x.shape[1] % 2 else x * 3.0


def _seven(x: Tensor, ids: Tensor) -> Tensor:
    return x.view(1, 7, 8) * 2.0


@pytest.mark.parametrize(
    ("function", "condition"),
    [(_loop, "Eq(T, 7)"), (_long, "T <= 300"), (_one, "Ne(T, 1)"), (_odd, "Ne(Mod(T, 2), 0)"),
     (_seven, "Eq(8*T, 56)")],
)  # fmt: skip
def test_code_that_decides_by_the_number_of_tokens_is_named(
    function: Forward, condition: str
) -> None:
    message = _refusal(function)
    assert re.match(r"test_trace.py:\d+ does not do the same for every number T", message), message
    assert f"(it asks for {condition})" in message


def test_a_dimension_that_goes_when_it_is_one_is_named() -> None:
    message = _refusal(lambda x, ids: x.squeeze(1) * 2.0)
    assert re.match(r"test_trace.py:\d+ does not do the same .*T > 1", message), message


def test_both_sides_of_a_decision_may_be_the_same_program() -> None:
    def doubled(x: Tensor, ids: Tensor) -> Tensor:
        if x.shape[1] > 1:
            return x * 2.0
        return x * 2.0

    graph = _graph(doubled)
    assert str(graph.outputs[0].type) == "1xTx8xf32"


def test_a_value_that_decides_is_named_by_its_line() -> None:
    message = _refusal(lambda x, ids: x * 2.0 if ids.sum() > 3 else x)
    assert re.search(r"computed from its weights or tokens to go on \(test_trace.py:\d+\)", message)


def test_what_fails_in_a_trace_is_named_by_its_line() -> None:
    message = _refusal(lambda x, ids: x @ torch.ones(3, 3))
    assert re.search(r"one graph: test_trace.py:\d+: \w+: ", message), message


def test_an_op_is_named_as_the_model_wrote_it() -> None:
    program = _program(lambda x, ids: torch.nn.functional.softplus(x) + x.softmax(-1))
    names = sorted(str(node.target) for node in program.missing or ())
    assert names == ["aten.softmax.int", "aten.softplus.default"]


def test_an_op_that_consists_of_known_ones_is_not_missing() -> None:
    program = _program(lambda x, ids: torch.addcmul(x, x, x) + torch.square(x))
    assert program.missing is None
    to_graph(program)


def test_only_what_is_missing_is_listed_beside_what_can_be_decomposed() -> None:
    message = _refusal(lambda x, ids: torch.square(x).cumsum(1) + torch.addcmul(x, x, x))
    assert re.search(r": aten.cumsum.default \(1×, first at \S+\)$", message), message


def test_what_is_changed_in_place_counts_as_what_it_computes() -> None:
    assert _program(lambda x, ids: x.mul(2.0).add_(1.0)).missing is None


def test_an_assignment_to_a_part_is_missing() -> None:
    def assigned(x: Tensor, ids: Tensor) -> Tensor:
        y = x * 2.0
        y[..., 2:4] = 0.5
        return y

    assert "aten.fill_.Tensor" in _refusal(assigned) or "aten.copy_" in _refusal(assigned)


def test_functions_of_sizes_have_a_name_of_their_own() -> None:
    def least(x: Tensor, ids: Tensor) -> Tensor:
        return x[:, : torch.sym_min(x.shape[1], 5)].cumsum(1)

    message = _refusal(least)
    assert "0x" not in message
    assert "sym_min (first at" in message or "sym_min (1×" in message


def test_a_size_that_is_not_linear_does_not_hide_what_comes_behind_it() -> None:
    message = _refusal(lambda x, ids: x[:, : x.shape[1] // 2].sum(1).cumsum(0))
    assert "aten.slice.Tensor (a size that is not linear in the tokens)" in message
    assert "aten.cumsum.default" in message


def test_files_of_torch_and_python_are_not_the_models() -> None:
    assert is_of_model(__file__)
    assert not is_of_model(torch.__file__)
    assert not is_of_model(re.__file__)
    assert not is_of_model(attention.__file__)
    assert raising_line(ValueError()) == "?"
