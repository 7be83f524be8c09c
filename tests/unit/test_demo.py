"""The demo's stages run once, and again only when something that they depend on changed."""

from pathlib import Path

from aotlm.driver.demo import STAMPS, Stage, bring_up_to_date
from aotlm.driver.folders import default_folder


def _stage(out: Path, inputs: dict[str, str], runs: list[str]) -> Stage:
    def run() -> None:
        runs.append("ran")
        (out / "result").write_text("made")

    return Stage("stage", lambda: inputs, out / "result", run)


def test_a_stage_runs_again_only_for_other_inputs(tmp_path: Path) -> None:
    runs: list[str] = []
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "1"}, runs))
    assert not bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "1"}, runs))
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {"a": "2"}, runs))
    assert len(runs) == 2


def test_a_stage_runs_again_when_its_result_is_gone(tmp_path: Path) -> None:
    runs: list[str] = []
    stage = _stage(tmp_path, {}, runs)
    bring_up_to_date(tmp_path, stage)
    (tmp_path / "result").unlink()
    assert bring_up_to_date(tmp_path, stage)


def test_broken_stamps_only_cost_a_run(tmp_path: Path) -> None:
    (tmp_path / STAMPS).write_text("{")
    assert bring_up_to_date(tmp_path, _stage(tmp_path, {}, []))


def test_the_default_folder_has_the_models_last_name_and_dtype() -> None:
    assert default_folder("deepseek-ai/X-1.5B", "f16") == Path("artifacts/X-1.5B-f16")
    assert default_folder("/models/x.gguf", "f32") == Path("artifacts/x-f32")
    assert default_folder("demo", "bf16") == Path("artifacts/demo-bf16")
