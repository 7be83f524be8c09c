"""What OpenVINO is told to compute in, with a plugin that takes what its CPU has."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Core:
    """OpenVINO's core on a CPU that has `precisions`, the first of them for what it has not."""

    def __init__(self, *precisions: str) -> None:
        self.precisions, self.hints = precisions, list[str]()

    def compile_model(self, model: Any, device: str, options: dict[str, Any]) -> Any:
        hint = options["INFERENCE_PRECISION_HINT"]
        self.hints.append(hint)
        taken = hint if hint in self.precisions else self.precisions[0]
        found = SimpleNamespace(to_string=lambda: taken)
        return SimpleNamespace(get_property=lambda name: found)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker's module; OpenVINO itself is in the peers' environment only."""
    openvino: Any = ModuleType("openvino")
    openvino.Type = SimpleNamespace(f16="f16", bf16="bf16", f32="f32")
    openvino.Core = openvino.Model = object
    openvino.opset13 = None
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    monkeypatch.delitem(sys.modules, "bench.openvino_worker", raising=False)
    import bench.openvino_worker as module

    yield module
    sys.modules.pop("bench.openvino_worker", None)


@pytest.mark.parametrize(
    ("dtype", "precisions", "taken", "hints"),
    [
        ("f16", ("bf16", "f32"), "f32", ["f16", "f32"]),  # AVX512_BF16 without AVX512_FP16
        ("f16", ("f32", "f16"), "f16", ["f16"]),
        ("f16", ("f32",), "f32", ["f16"]),
        ("bf16", ("bf16", "f32"), "bf16", ["bf16"]),
        ("bf16", ("f32",), "f32", ["bf16"]),
    ],
)
def test_arithmetic_is_in_the_bundles_dtype_or_in_f32(
    worker: Any, dtype: str, precisions: tuple[str, ...], taken: str, hints: list[str]
) -> None:
    core = Core(*precisions)
    assert worker._compile(core, None, {}, dtype)[1] == taken
    assert core.hints == hints


def test_a_plugin_that_takes_neither_is_refused(worker: Any) -> None:
    with pytest.raises(RuntimeError, match="computes in bf16, not in f16 or f32"):
        worker._compile(Core("bf16"), None, {}, "f16")
