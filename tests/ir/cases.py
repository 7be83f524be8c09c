"""The IR of one behaviour, by a line of words: `linear tokens=1 n=200 gate=silu target=x86-64-v3`.

`target` gives the kernels their bodies; without it the text is what `inv import` writes.
`python -m tests.ir.cases WORDS` prints it.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlir import ir

from aotlm.emit.function import emit_functions
from aotlm.emit.modules import Modules, emit_modules
from aotlm.graph import ops
from aotlm.graph.dims import Dim, T
from aotlm.graph.ir import Graph, Node, build
from aotlm.graph.state import kv_cache
from aotlm.kernels import define_kernels
from aotlm.partition.partition import Function, Program, Value, partition
from aotlm.passes.base import run_pipeline
from aotlm.passes.choose_codecs import ChooseCodecs
from aotlm.passes.mark_storage import MarkStorage
from aotlm.passes.pack_weights import PackWeights
from aotlm.passes.pipeline import graph_pipeline
from aotlm.passes.specialize_attention import SpecializeAttention
from aotlm.targets import resolve_target
from aotlm.weights.file import plan_weight_file
from aotlm.weights.policy import POLICIES
from tests.unit.decoders import Sizes, decoder
from tests.unit.graphs import Model, graph_of


def emitted(words: str) -> str:
    """Return the text that a line of words asks for."""
    name, *options = words.split()
    return CASES[name](**{key: _value(text) for key, text in (o.split("=") for o in options)})


def _value(text: str) -> Any:
    kinds: tuple[Callable[[str], Any], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return {"T": T, "true": True, "none": None}.get(text, text)


def filled(text: str, target: str) -> str:
    """Return a module's text with the target's kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.mlir"
        path.write_text(text, encoding="utf-8")
        return define_kernels(path, resolve_target(target))


def _function(graph: Graph, target: str | None) -> str:
    """Emit a Graph as the only function `f`; its parameters follow its inputs."""
    parameters = [node for node in graph.nodes if node.op is ops.PARAMETER]
    whole = build([*graph.inputs, *parameters], graph.outputs)
    function = Function("f", whole, len(graph.inputs))
    nothing = Value("", graph.outputs[0].type)
    with ir.Context(), ir.Location.unknown():
        text, _ = emit_functions(Program((), (function,), (), nothing))
    return filled(text, target) if target else text


def _stored(graph: Graph, dtype: str) -> Graph:
    policy = POLICIES[dtype]
    steps = (ChooseCodecs(policy), SpecializeAttention(), MarkStorage(policy), PackWeights())
    return run_pipeline(graph, steps)


def linear(
    tokens: Dim = T, n: int = 128, k: int = 32, dtype: str = "f32", target: str | None = None,
    gate: str | None = None, bias: bool = False, residual: bool = False, **attrs: Any,
) -> str:  # fmt: skip
    """One linear of n outputs; with a gate, of n gate and n up rows."""
    m = Model()
    x = m.input("x", 1, tokens, k)
    rows = 2 * (-(-n // 16) * 16) if gate else n
    operands = [x, m.parameter("w", rows, k)]
    operands += [m.parameter("b", rows)] if bias else []
    operands += [m.input("r", 1, tokens, n)] if residual else []
    attrs |= {"gate": gate, "n_out": n} if gate else {}
    y = m.make(ops.LINEAR, *operands, bias=bias, residual=residual, **attrs)
    return _function(_stored(graph_of(y), dtype), target)


def attention(
    tokens: Dim = T, dtype: str = "f32", window: int | None = None, softcap: float | None = None,
    target: str | None = None,
) -> str:  # fmt: skip
    """Attention of 4 heads and 2 KV heads, 8 wide."""
    m = Model()
    q, k, v = (m.input(name, 1, n, tokens, 8) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    caches = kv_cache(0, 2, 8, 8)
    positions = m.input("positions", 1, dtype="i64")
    y = m.make(
        ops.ATTENTION, q, k, v, positions, *caches, layer=0, scale=0.25, window=window,
        softcap=softcap,
    )  # fmt: skip
    return _function(_stored(graph_of(y), dtype), target)


def embedding(tied: bool = False, dtype: str = "f32") -> str:
    """Rows of an embedding table that is a head's weight too, or is not."""
    m = Model()
    table = m.parameter("embed", 70, 9)
    x = m.make(ops.EMBEDDING, table, m.input("tokens", 1, T, dtype="i64"))
    y = m.make(ops.LINEAR, x, table) if tied else m.make(ops.NEG, x)
    return _function(_stored(graph_of(y), dtype), None)


ELEMENTWISE: dict[str, Callable[[Model, Node], Node]] = {
    "silu": lambda m, x: m.make(ops.SILU, x),
    "rms_norm": lambda m, x: m.make(
        ops.RMS_NORM, x, m.parameter("w", 40), eps=1e-5, weight=True, offset=0.0
    ),
    "slice": lambda m, x: m.make(
        ops.NEG, m.permute(m.view(m.columns(x, 8, 40), 1, T, 4, 8), 0, 2, 1, 3)
    ),
    "chain": lambda m, x: m.make(ops.ADD, m.make(ops.EXP, m.make(ops.NEG, x)), x),
}  # fmt: skip


def elementwise(kind: str) -> str:
    """One of ELEMENTWISE over [1, T, 40]."""
    m = Model()
    return _function(graph_of(ELEMENTWISE[kind](m, m.input("x", 1, T, 40))), None)


def modules(
    entry: str = "prefill", layers: int = 2, dtype: str = "f32", window: int | None = None
) -> Modules:
    """Both modules of a small decoder; every second layer has the window."""
    sizes = Sizes(tokens=1 if entry == "decode" else T)
    graph = decoder(Model(), layers, (None, window) if window else (None,), sizes)
    program = partition(run_pipeline(graph, graph_pipeline(dtype)), entry)
    plan = plan_weight_file(program.weights())
    return emit_modules(program, f"forward_{entry}", plan.offsets_bytes, plan.data_size_bytes)


CASES: dict[str, Callable[..., str]] = {
    "linear": linear,
    "attention": attention,
    "embedding": embedding,
    "elementwise": elementwise,
    "forward": lambda **options: modules(**options).forward,
    "subgraph": lambda **options: modules(**options).subgraph,
}


if __name__ == "__main__":
    words = " ".join(sys.argv[1:])
    if words.split()[:1] not in [[name] for name in CASES]:
        sys.exit(
            f"error: {words!r} names no case; name one of {', '.join(CASES)}, as in 'linear n=64'"
        )
    print(emitted(words))
