"""An import is timed beside the conversion of its weights, and both limits are told."""

import dataclasses
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from bench.import_time import ImportTime, measure_import
from tests.unit.checkpoints import saved

MEASURED = ImportTime(50.0, 60.0, (10.0, 12.0), 3_000_000_000, 1_000_000_000)


def test_an_import_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    measured = measure_import(str(tmp_path / "model"), None, "f16", tmp_path / "scratch")
    assert 0 < max(measured.conversion_seconds) < measured.import_seconds
    assert measured.peak_bytes > 100e6  # PyTorch alone takes more
    assert not list((tmp_path / "scratch").iterdir())


def test_a_model_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(AotlmError, match=r"failed: .*has no config.json"):
        measure_import(str(tmp_path / "model"), None, "f16", tmp_path)


def test_the_limits_follow_from_the_conversions_and_the_weights() -> None:
    assert MEASURED.limit_seconds == pytest.approx(45 + 1.3 * 11)
    assert MEASURED.limit_bytes == pytest.approx(3.3e9)
    assert "at most 59.3 s: 45 s and 1.3 conversions" in str(MEASURED)
    assert "both limits are kept" in str(MEASURED)


@pytest.mark.parametrize(
    "measured",
    [
        dataclasses.replace(MEASURED, import_seconds=60.0),
        dataclasses.replace(MEASURED, peak_bytes=3_400_000_000),
    ],
    ids=["time", "memory"],
)
def test_a_limit_that_is_passed_is_told(measured: ImportTime) -> None:
    assert not measured.passed
    assert "A LIMIT IS NOT KEPT" in str(measured)
