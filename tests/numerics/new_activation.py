"""An activation that aotlm does not have, added as CONTRIBUTING says, by a row of the one table.

Run as a program in a folder: compiles a small model with it, and prints as JSON what became of it
and how far the logits are from PyTorch's. Everything but the table is imported after the row.
"""

import json
import sys
from pathlib import Path
from typing import Any

from aotlm.graph.activations import Arithmetic, activation


@activation("hardswish.default")
def hardswish(m: Arithmetic, x: Any) -> Any:
    """x · min(max(x + 3, 0), 6) / 6"""
    return m.div(m.mul(x, m.minimum(m.maximum(m.add(x, 3.0), 0.0), 6.0)), 6.0)


@activation(None, None, lambda g, x: g.mul(x, g.sigmoid(g.mul(1.702, x))))
def quick_gelu(m: Arithmetic, x: Any) -> Any:
    """x · sigmoid(1.702 x)"""
    return m.mul(x, m.sigmoid(m.mul(x, 1.702)))


def report(name: str, folder: Path) -> dict[str, Any]:
    """Compile a gated model with the activation; return its gates and two relative errors."""
    from transformers import LlamaConfig

    from aotlm.capture.importer import to_graph
    from aotlm.capture.trace import trace
    from aotlm.driver.compiler import ENTRIES
    from aotlm.graph import ops
    from aotlm.passes.base import run_pipeline
    from aotlm.passes.pipeline import graph_pipeline
    from tests.numerics.answers import run_eager
    from tests.numerics.compiled import Caller, compile_model
    from tests.numerics.configs import VOCAB_SIZE, redraw
    from tests.numerics.models import (
        CACHE_LENGTH,
        Interpreted,
        eager,
        reader,
        relative_error,
        tokens,
    )

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, hidden_act=name,
    )  # fmt: skip
    model = eager(config)
    redraw(model, (1.0, 1.0))
    program = trace(config)
    graphs = [run_pipeline(to_graph(program), graph_pipeline("f32", n)) for n in ENTRIES.values()]
    gates = [node.attrs.get("gate") for node in graphs[0].nodes if node.op is ops.LINEAR]
    wanted = run_eager(model, tokens())
    interpreted = Interpreted(graphs[0], graphs[1], reader(model, program))
    caller = Caller(compile_model(program, model, "f32", folder), CACHE_LENGTH)
    compiled = caller.call("prefill", tokens(), 0, len(tokens()))
    return {
        "gates": [gate for gate in gates if gate],
        "interpreted": relative_error(interpreted.run("prefill", tokens(), 0), wanted),
        "compiled": relative_error(compiled, wanted),
    }


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    print("\n" + json.dumps(report(name, Path(folder))))
