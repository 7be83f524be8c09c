"""Stages run once, and again only when something that they depend on changed."""

import subprocess
import sys
from pathlib import Path

import pytest

import aotlm
from aotlm.driver.build import STAMPS, Stage, bring_up_to_date
from aotlm.driver.folders import default_folder
from aotlm.errors import UsageError


def _stage(out: Path, inputs: dict[str, str], runs: list[str]) -> Stage:
    def run() -> None:
        runs.append("ran")
        for name in ("result", "archive"):
            (out / name).write_text("made")

    return Stage("stage", lambda: inputs, (out / "result", out / "archive"), run)


def test_a_stage_runs_again_only_for_other_inputs(tmp_path: Path) -> None:
    runs: list[str] = []
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "1"}, runs))
    assert not bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "1"}, runs))
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "2"}, runs))
    assert len(runs) == 2


@pytest.mark.parametrize("name", ["result", "archive"])
def test_a_stage_runs_again_when_a_result_is_gone(tmp_path: Path, name: str) -> None:
    stage = _stage(tmp_path, {}, [])
    bring_up_to_date(tmp_path, stage)
    (tmp_path / name).unlink()
    assert bring_up_to_date(tmp_path, stage)


def test_a_stage_runs_again_when_its_result_was_made_by_something_else(tmp_path: Path) -> None:
    stage = _stage(tmp_path, {}, [])
    bring_up_to_date(tmp_path, stage)
    (tmp_path / "result").write_text("of another import")
    assert bring_up_to_date(tmp_path, stage)


@pytest.mark.parametrize("text", ["{", "[]", '{"stage": "0123"}', "\udcff"])
def test_broken_stamps_only_cost_a_run(tmp_path: Path, text: str) -> None:
    (tmp_path / STAMPS).write_text(text, errors="surrogateescape")
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {}, []))


def test_the_default_folder_has_the_models_last_name_and_dtype() -> None:
    assert default_folder("deepseek-ai/X-1.5B", "f16") == Path("artifacts/X-1.5B-f16")
    assert default_folder("/models/x.gguf", "f32") == Path("artifacts/x-f32")
    assert default_folder("demo", "bf16") == Path("artifacts/demo-bf16")


REFUSED = """
import sys, aotlm
try:
    aotlm.build({words})
except aotlm.UsageError as error:
    print(error)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("'demo', 'out', target='pentium'", "unknown target 'pentium'"),
        ("'demo', 'out', dtype='f8'", "the dtype f8 is unknown"),
        ("'demo', 'out', revision='main'", "demo has no revisions"),
        ("'no such model', 'out'", "no such model is no folder or file on this machine"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_loaded(
    tmp_path: Path, words: str, sentence: str
) -> None:
    command = [sys.executable, "-c", REFUSED.format(words=words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    said, is_loaded = done.stdout.splitlines()
    assert said.startswith(sentence)
    assert is_loaded == "False"
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_word_is_a_type_error_and_no_option() -> None:
    with pytest.raises(TypeError):
        aotlm.build("demo", "out", dtpye="f16")  # type: ignore[call-arg]
    with pytest.raises(UsageError):
        aotlm.build("demo", "out", dtype="f8")
