"""A build's stages are measured in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.toolchain.pins import ROOT
from bench.build import measure_build
from tests.unit.checkpoints import saved


def test_a_conversion_is_timed_without_its_start_and_leaves_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    (tmp_path / "scratch").mkdir()
    words = ["convert", str(tmp_path / "model"), "", "f16", "x86-64-v3", str(tmp_path / "scratch")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.build", *words],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    seconds, peak_bytes = json.loads(done.stdout)
    assert seconds > 0
    assert peak_bytes > 100e6  # PyTorch alone takes more
    assert not list((tmp_path / "scratch").iterdir())


def test_a_model_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(AotlmError, match=r"the stage convert failed: .*has no config.json"):
        measure_build(str(tmp_path / "model"), None, "f16", "x86-64-v3", lambda stage: None)
