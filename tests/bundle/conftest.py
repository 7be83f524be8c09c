"""Fixtures: a model of forty lines, imported and compiled."""

from pathlib import Path

import pytest

from aotlm.codegen.compile import compile_import
from aotlm.support.build_record import ORIGIN_VARIABLE, Origin
from aotlm_runtime.bundle.manifest import encode
from tests.unit.handwritten import leave_kernels, write_import

TARGET = "x86-64-v3"
KNOWN = Origin(commit="a" * 40, dirty=False, pins_sha256="b" * 64)


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both stages, by the commit KNOWN; to be copied before it is changed."""
    out = tmp_path_factory.mktemp("stages") / "counter-f32"
    with pytest.MonkeyPatch.context() as patch:
        leave_kernels(patch)
        patch.setenv(ORIGIN_VARIABLE, encode(KNOWN).decode())
        write_import(out)
        compile_import(out, TARGET)
    return out
