"""OpenVINO as a peer: `python -m bench.openvino_worker XML DTYPE THREADS`."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from bench.worker import serve

_TYPES = {"f16": ov.Type.f16, "bf16": ov.Type.bf16, "f32": ov.Type.f32}


class OpenVino:
    """A stateful model, as OpenVINO GenAI runs it: without quantization, and with a cache of the
    bundle's dtype. Arithmetic is in the dtype where the plugin has it on this CPU, else in f32.

    Raises:
        RuntimeError: the plugin computes in another dtype, whatever it is told.
    """

    def __init__(self, path: str, dtype: str, n_threads: int) -> None:
        core = ov.Core()
        model = core.read_model(path)
        _keep_last_position(model)
        options = {
            "INFERENCE_NUM_THREADS": n_threads,
            "KV_CACHE_PRECISION": _TYPES[dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        compiled, precision = _compile(core, model, options, dtype)
        self.about = (
            f"OpenVINO {ov.__version__.partition('-')[0]}, computing in {precision} "
            f"with a cache in {compiled.get_property('KV_CACHE_PRECISION').to_string()}"
        )
        self._request = compiled.create_infer_request()
        self._length = 0

    def fill_for_benchmark(self, depth: int) -> None:
        """Hold one token's keys and values `depth` times."""
        self.rewind(0)
        if depth:
            self.extend([0])
            for variable in self._request.query_state():
                repeated = np.repeat(variable.state.data, depth, axis=2)
                variable.state = ov.Tensor(repeated)
            self._length = depth

    def rewind(self, depth: int) -> None:
        """Forget all tokens for depth 0, and none else: the plugin cannot cut its cache."""
        if not depth:
            self._request.reset_state()
            self._length = 0

    def extend(self, ids: Sequence[int]) -> Any:
        """Append tokens; return the logits after the last one, [V] f32."""
        start, self._length = self._length, self._length + len(ids)
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.arange(start, self._length)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return self._request.infer(inputs, share_inputs=True, share_outputs=True)[0][0, -1]


def _compile(
    core: ov.Core, model: ov.Model, options: dict[str, Any], dtype: str
) -> tuple[Any, str]:
    """Return the compiled model and the dtype that it computes in: the wanted one, or f32.

    The hint is only a hint: told to compute in f16, the plugin takes bf16 on a CPU that has that
    and no f16.
    """
    precision = ""
    for wanted in (dtype, "f32"):
        hinted = {**options, "INFERENCE_PRECISION_HINT": _TYPES[wanted]}
        compiled = core.compile_model(model, "CPU", hinted)
        precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if precision in (dtype, "f32"):
            return compiled, precision
        del compiled  # its memory, before the next one takes as much
    raise RuntimeError(f"OpenVINO computes in {precision}, not in {dtype} or f32")


def _keep_last_position(model: ov.Model) -> None:
    """Cut what goes into the head, [1, T, D], to the last position, as OpenVINO GenAI does."""
    head = model.output("logits").get_node().input_value(0).get_node()
    start, stop, step, axis = (opset13.constant([value]) for value in (-1, 2**31 - 1, 1, 1))
    last = opset13.slice(head.input_value(0), start, stop, step, axis)
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


if __name__ == "__main__":
    path, dtype, n_threads = sys.argv[1:]
    serve({"openvino": lambda: OpenVino(path, dtype, int(n_threads))})
