"""The model in f32 with what its quantised weights mean: what a quantised bundle is held to."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from aotlm.capture.importer import to_graph
from aotlm.capture.source import ModelSource
from aotlm.capture.trace import Program
from aotlm.graph import ops
from aotlm.graph.ir import Graph
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.weight import Source


def meant_model(source: ModelSource, program: Program, dtype: str) -> torch.nn.Module:
    """Return PyTorch's model, eager and in f32, each matrix as the policy's codec means it."""
    model = AutoModelForCausalLM.from_config(
        source.config, dtype=torch.float32, attn_implementation="eager"
    )
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(source.tensors.read(name))
    round_parameters(model, to_graph(program), dtype)
    module: torch.nn.Module = model.eval().requires_grad_(False)
    return module


def round_parameters(model: torch.nn.Module, graph: Graph, dtype: str) -> None:
    """Replace the parameters that a policy stores as blocks by what they mean then."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for part, codec in _quantised(graph, dtype).items():
        values = parameters[part.tensor].detach().numpy()
        rows = codec.round(values.T if part.transposed else values)
        back = np.ascontiguousarray(rows.T if part.transposed else rows)
        parameters[part.tensor].data = torch.from_numpy(back)


def _quantised(graph: Graph, dtype: str) -> dict[Source, BlockCodec]:
    """Return the checkpoint's tensors that are stored as blocks, each once and whole."""
    found = {}
    for node in run_pipeline(graph, graph_pipeline(dtype)).nodes:
        if node.op is ops.PARAMETER:
            weight = node.attrs["weight"]
            if isinstance(weight.storage, BlockCodec):
                for part in weight.sources:
                    whole = Source(part.tensor, None, part.transposed)
                    found[whole] = weight.storage
    return found
