"""A pipeline runs its passes in order, verifies each result and shows it to the hook."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aotlm.errors import AotlmError, PassError
from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, TensorType, make, rewrite
from aotlm.graph.ops import TypeMismatch
from aotlm.graph.printer import to_text
from aotlm.graph.verify import InvalidGraph
from aotlm.passes.base import Pass, PatternPass, run_pipeline
from aotlm.passes.canonicalize import Canonicalize
from aotlm.passes.pipeline import graph_pipeline
from aotlm.passes.recognize_norms import RecognizeNorms
from tests.unit.graphs import Model, computed, graph_of


@dataclass(frozen=True)
class _Pass:
    name: str
    change: Callable[[Graph], Graph]

    def apply(self, graph: Graph) -> Graph:
        return self.change(graph)


_TWO = make(ops.SCALAR, value=2.0)


def _graph() -> Graph:
    m = Model()
    return graph_of(m.make(ops.EXP, m.make(ops.MUL, m.input("x", 1, T, 8), 1.0)))


def test_the_hook_sees_the_graph_before_between_and_after_the_passes() -> None:
    seen: list[tuple[str | None, list[str], str | None]] = []
    same = _Pass("same", lambda graph: graph)

    def hook(previous: Pass | None, graph: Graph, next: Pass | None) -> None:
        names = [step.name if step else None for step in (previous, next)]
        seen.append((names[0], computed(graph), names[1]))

    run_pipeline(_graph(), [same, Canonicalize()], hook)
    assert seen == [
        (None, ["mul", "exp"], "same"),
        ("same", ["mul", "exp"], "canonicalize"),
        ("canonicalize", ["exp"], None),
    ]


def test_a_pass_does_not_change_the_graph_that_it_was_given() -> None:
    graph = _graph()
    run_pipeline(graph, [Canonicalize()])
    assert computed(graph) == ["mul", "exp"]


def _broken(graph: Graph) -> Graph:
    wrong = Node(ops.EXP, graph.inputs, {}, TensorType((1,)))
    return Graph(graph.inputs, (*graph.inputs, wrong), (wrong,))


def _raising(error: Exception) -> Callable[[Graph], Graph]:
    def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
        if node.op is ops.EXP:
            raise error
        return None

    return lambda graph: rewrite(graph, rule)


def test_a_pass_that_breaks_the_graph_is_stopped_before_the_hook(tmp_path: Path) -> None:
    seen: list[Pass | None] = []
    with pytest.raises(PassError, match="exp has type 1xf32"):
        run_pipeline(
            _graph(), [_Pass("broken", _broken)], lambda _, __, next: seen.append(next),
            failed=tmp_path,
        )  # fmt: skip
    assert [step and step.name for step in seen] == ["broken"]  # not the end


@pytest.mark.parametrize(
    ("change", "node", "reason"),
    [
        (_broken, "exp: 1xf32 in the model", "InvalidGraph: exp has type 1xf32, its operands give"),
        (_raising(TypeMismatch("no")), "%exp", "TypeMismatch: no"),
        (_raising(KeyError("window")), "%exp", "KeyError: 'window'"),
    ],
)
def test_a_failing_pass_names_itself_the_node_and_the_file_of_the_graph_before_it(
    tmp_path: Path, change: Callable[[Graph], Graph], node: str, reason: str
) -> None:
    steps: list[Pass] = [Canonicalize(), _Pass("broken", change)]
    with pytest.raises(PassError) as caught:
        run_pipeline(_graph(), steps, entry="decode", failed=tmp_path / "failed")
    kept = tmp_path / "failed" / "decode.02-before-broken.graph"
    message = str(caught.value)
    assert message.startswith(f"the pass broken failed at {node}: {reason}")
    assert str(kept) in message
    assert kept.read_text() == to_text(Canonicalize().apply(_graph()), locations=True)


def test_without_a_folder_the_graph_before_a_failing_pass_is_kept_in_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PassError, match=str(tmp_path)):
        run_pipeline(_graph(), [_Pass("broken", _broken)])
    (kept,) = tmp_path.rglob("*.graph")
    assert kept.name == "graph.01-before-broken.graph"


def test_a_pass_that_refuses_a_model_is_no_defect(tmp_path: Path) -> None:
    refusing = _Pass("refusing", _raising(AotlmError("two computed matrices")))
    with pytest.raises(AotlmError, match=r"^two computed matrices$"):
        run_pipeline(_graph(), [refusing], failed=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_was_given_broken_blames_no_pass() -> None:
    with pytest.raises(InvalidGraph, match="exp has type"):
        run_pipeline(_broken(_graph()), [Canonicalize()])


def test_patterns_are_tried_in_their_order_and_the_rest_stays() -> None:
    def doubled(node: Node) -> Node | None:
        return make(ops.MUL, [node.operands[0], _TWO]) if node.op is ops.EXP else None

    def negated(node: Node) -> Node | None:
        return make(ops.NEG, [node.operands[0]]) if node.op is ops.EXP else None

    assert computed(PatternPass("p", (doubled, negated)).apply(_graph())) == ["mul", "mul"]
    assert computed(PatternPass("p", (negated, doubled)).apply(_graph())) == ["mul", "neg"]


def test_the_recorded_form_of_a_pass_is_the_same_in_every_process() -> None:
    assert not [step for step in graph_pipeline("f16") if " at 0x" in repr(step)]
    assert repr(RecognizeNorms()) == "RecognizeNorms(name='recognize-norms')"


def test_the_graphs_of_any_pipeline_go_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path))
    run_pipeline(_graph(), [Canonicalize(), Canonicalize()], entry="prefill")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.graph")) == [
        "import/prefill.00-captured.graph",
        "import/prefill.01-canonicalize.graph",
        "import/prefill.02-canonicalize.graph",
    ]
    text = (tmp_path / "import" / "prefill.00-captured.graph").read_text()
    assert "%mul = mul(%x, 1.0)" in text
