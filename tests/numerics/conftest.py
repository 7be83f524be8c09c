"""Fixtures: tiny models, compiled once for all tests that run them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotlm_runtime.cpu import cpu_features
from tests.numerics.compiled import Compiled, compile_model
from tests.numerics.models import captured, reference

Compile = Callable[[str, str], Compiled]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Return what compiles a case in a dtype, and remembers it."""
    if not {"avx2", "fma", "f16c"} <= set(cpu_features()):
        pytest.skip("this CPU cannot run x86-64-v3")
    made: dict[tuple[str, str], Compiled] = {}

    def get(name: str, dtype: str = "f32") -> Compiled:
        if (name, dtype) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{dtype}")
            programs = captured(name).programs
            made[name, dtype] = compile_model(programs, reference(name), dtype, folder)
        return made[name, dtype]

    return get
