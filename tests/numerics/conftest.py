"""Fixtures: tiny models, compiled once for all tests that run them."""

from __future__ import annotations

from typing import Protocol

import pytest

from aotlm.targets import Target
from aotlm_runtime.host.cpu import cpu_features
from tests.numerics.compiled import TARGET, Compiled, compile_model
from tests.numerics.models import captured, reference


class Compile(Protocol):
    """What compiles a case in a dtype for a target, and remembers it."""

    def __call__(self, name: str, dtype: str = "f32", target: Target = TARGET) -> Compiled: ...


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Return what compiles a case in a dtype for a target, and remembers it."""
    if not {"avx2", "fma", "f16c"} <= set(cpu_features()):
        pytest.skip("this CPU cannot run x86-64-v3")
    made: dict[tuple[str, str, Target], Compiled] = {}

    def get(name: str, dtype: str = "f32", target: Target = TARGET) -> Compiled:
        key = (name, dtype, target)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{dtype}-{target.name}")
            program = captured(name).program
            made[key] = compile_model(program, reference(name), dtype, folder, target)
        return made[key]

    return get
