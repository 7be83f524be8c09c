"""Capture: a transformers model without weights → one ExportedProgram for any number of tokens.

It is f32 and made under FakeTensorMode, so a model of any size is captured in little memory.
`tokens` is [1, T] i64, `positions` [1] i64 is the position of the first token; the result is the
logits of every row, [1, T, V] f32. Decode is the same program with T = 1.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from accelerate import init_empty_weights
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental import _config as shapes
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights

from aotlm.capture import attention
from aotlm.capture.any_size import size_guards
from aotlm.capture.config_checks import check_config
from aotlm.capture.lines import causes, raising_line
from aotlm.capture.missing import decompositions, missing
from aotlm.capture.nodes import is_plain, repeated_layers
from aotlm.capture.sizes import LinearSizes, NotLinear
from aotlm.errors import AotlmError, UnsupportedModelError

N_EXAMPLE_TOKENS: Final = 7  # any number but 0 and 1, which torch.export would specialise
_DATA_DEPENDENT: Final = (DataDependentOutputException, GuardOnDataDependentSymNode)

Array = np.ndarray[Any, Any]
Buffers = Mapping[str, Array]
_Exported = torch.export.ExportedProgram


@dataclass(frozen=True)
class Program:
    """What was exported.

    refused: a sentence for each thing that cannot be compiled. missing: nodes whose ops have no
    translation, where the program is as the model wrote it, and other unknown ops can be
    decomposed; None where they are. beginning: the part of the model before the first size that is
    not linear in the tokens, where there is one; `exported` is then for one number of tokens, and
    only tells what is missing.
    """

    exported: _Exported
    buffers: Buffers  # f32, by the model's own name
    refused: tuple[str, ...] = ()
    missing: frozenset[torch.fx.Node] | None = None
    beginning: _Exported | None = None


class _Logits(torch.nn.Module):
    """The model as a function of tokens and the first token's position alone.

    Where `sizes` stops the trace, the result is what was computed last.
    """

    def __init__(self, model: torch.nn.Module, sizes: LinearSizes | None) -> None:
        super().__init__()
        self.model, self.sizes = model, sizes

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        position_ids = positions[:, None] + torch.arange(tokens.shape[1])[None]
        mode = get_proxy_mode()
        modules = getattr(mode.tracer, "module_stack", {}) if mode else {}
        entered = list(modules)
        try:
            with self.sizes or nullcontext():
                out = self.model(
                    input_ids=tokens, position_ids=position_ids, use_cache=False,
                    attention_mask=None,
                )  # fmt: skip
        except NotLinear as stop:
            for path in [path for path in modules if path not in entered]:
                del modules[path]  # torch does not leave the modules of an error
            return stop.tensors
        return out.logits


def _model(config: PretrainedConfig) -> torch.nn.Module:
    config = copy.deepcopy(config)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention.NAME, dtype=torch.float32
    ).eval()
    return model.requires_grad_(False)


def _without_values(config: PretrainedConfig) -> torch.nn.Module:
    """Return the model without initial values: drawing them may need numbers that a trace has not.

    transformers' context leaves out the ties together with the values.
    """
    with no_init_weights():
        model = _model(config)
    model.tie_weights()  # type: ignore[operator]
    return model


def _buffers(config: PretrainedConfig) -> dict[str, Array]:
    """Return the values of the model's f32 buffers (rotary frequencies)."""
    with init_empty_weights(include_buffers=False):
        model = _model(config)
    return {
        name: buffer.to(torch.float32).numpy()
        for name, buffer in sorted(model.named_buffers())
        if buffer.is_floating_point() and not buffer.is_meta
    }


def _export(
    make: Callable[[], torch.nn.Module],
    n_tokens: int | None = None,
    sizes: LinearSizes | None = None,
) -> _Exported:
    """Export a model for any number of tokens, or for one; as far as `sizes` lets it.

    torch must not take for granted that any number is not 1.
    """
    any_size = shapes.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with any_size, FakeTensorMode(allow_non_fake_inputs=True):
        tokens = torch.zeros(1, n_tokens or N_EXAMPLE_TOKENS, dtype=torch.int64)
        example = (tokens, torch.zeros(1, dtype=torch.int64))
        dynamic: Any = None if n_tokens else ({1: torch.export.Dim.AUTO}, {})
        module = _Logits(make(), sizes)
        return torch.export.export(module, example, dynamic_shapes=dynamic, strict=False)


def _program(make: Callable[[], torch.nn.Module], buffers: Callable[[], Buffers]) -> Program:
    """Export, and decompose only what can be compiled: either takes long for what cannot."""
    sizes = LinearSizes()
    exported = _export(make, sizes=sizes)
    if sizes.stopped:
        whole = _export(make, N_EXAMPLE_TOKENS)
        lacking = missing(whole.graph)
        if lacking:
            return Program(whole, {}, (), lacking | missing(exported.graph), exported)
        exported = _export(make)
    lacking, refused = missing(exported.graph), tuple(_repetitions(exported))
    if lacking or refused:
        return Program(exported, {}, refused, lacking)
    guards = size_guards(exported, partial(_export, make))
    return Program(_decomposed(exported), buffers(), tuple(guards))


def _repetitions(exported: _Exported) -> Iterator[str]:
    repeated = repeated_layers(exported.graph)
    if repeated:
        yield (
            f"attention runs more than once in one call (layers {', '.join(map(str, repeated))}), "
            "and a layer keeps one KV cache, so this model cannot be compiled"
        )


def _decomposed(exported: _Exported) -> _Exported:
    """Return the program in ops that have their Graph op, as far as it can be.

    Decomposing means to trace again, which takes longer than the export itself; a program whose
    ops all have their Graph op needs none.
    """
    if is_plain(exported.graph):
        return exported
    with FakeTensorMode(allow_non_fake_inputs=True):
        return exported.run_decompositions(decompositions())


def trace(config: PretrainedConfig) -> Program:
    """Return the model's program.

    Raises:
        AotlmError: as `trace_module`, or the configuration asks for what is not supported.
    """
    check_config(config)
    attention.register()
    return trace_module(partial(_without_values, config), partial(_buffers, config), _name(config))


def trace_module(
    make: Callable[[], torch.nn.Module],
    buffers: Callable[[], Buffers],
    name: str,
) -> Program:
    """Return the program of a module that is called as transformers' causal models are.

    `make` returns the module, without weights; `buffers` its f32 buffers; `name` is for errors.

    Raises:
        AotlmError: the model does not trace into exactly one graph, with torch's reason.
    """
    with warnings.catch_warnings(), attention.refused() as refused:
        warnings.simplefilter("ignore")
        try:
            program = _program(make, buffers)
            return replace(program, refused=(*refused, *program.refused))
        except AotlmError:
            raise
        except Exception as error:
            if refused:  # the rest of the trace may have stumbled over just that
                raise UnsupportedModelError("; ".join(refused)) from error
            raise AotlmError(_untraceable(name, error)) from error


def _untraceable(name: str, error: Exception) -> str:
    """Say why a model does not become one graph, and at which line of its own."""
    line = raising_line(error)
    if isinstance(error, KeyError) and error.args == (attention.NAME,):
        return (
            f"{name} takes its attention from a table of its own ({line}), past transformers' "
            "attention interface, so this model cannot be compiled"
        )
    if any(isinstance(cause, _DATA_DEPENDENT) for cause in causes(error)):
        return (
            f"{name} needs a value that is computed from its weights or tokens to go on ({line}), "
            "so it is no one graph and cannot be compiled"
        )
    reason = next(iter(str(error).strip().splitlines()), "")[:400]
    return (
        f"{name} cannot be captured as one graph: {line}: {type(error).__name__}: {reason}; run "
        "with --debug for the trace"
    )


def _name(config: PretrainedConfig) -> str:
    return ", ".join(config.architectures or [config.model_type])
