"""The stages one after the other, as a user types them: each finds what the one before left."""

from pathlib import Path

import pytest

from aotlm.driver.folders import DEFAULT_MODEL, default_folder
from aotlm.driver.main import main
from tests.unit.checkpoints import saved_words

TARGET = "--target=x86-64-v3"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in it, imported and compiled by its name alone."""
    place = tmp_path_factory.mktemp("place")
    saved_words(place / "tiny", max_position_embeddings=256)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["import", "--model=tiny", "--dtype=f32"]) == 0
        assert main(["compile", "--model=tiny", "--dtype=f32", TARGET]) == 0
    return place


@pytest.fixture(autouse=True)
def _in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def _run(*words: str) -> int:
    return main(["run", *words, "--prompt", "w1 w2 w3", "--max-tokens", "4", "--no-stats"])


def test_run_packages_what_was_compiled_and_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run("--model=tiny", "--dtype=f32") == 0
    out, err = capsys.readouterr()
    said = "packaged artifacts/tiny-f32/bundle first"
    assert err.splitlines()[-1] == said
    assert _run("--dir=artifacts/tiny-f32") == 0
    assert capsys.readouterr() == (out, "")
    assert main(["compile", "--model=tiny", "--dtype=f32", "--target=x86-64-v4"]) == 0
    capsys.readouterr()
    assert _run("--model=tiny", "--dtype=f32") == 0
    again, err = capsys.readouterr()
    assert (again, err.splitlines()[-1]) == (out, said)


def test_run_does_not_answer_with_the_bundle_of_another_import(
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved_words(Path("other"))
    out, folder = "--out=artifacts/other", "--dir=artifacts/other"
    assert main(["import", "--model=other", "--dtype=f32", out]) == 0
    assert main(["compile", folder, TARGET]) == 0
    assert _run(folder) == 0
    assert main(["import", "--model=other", "--dtype=bf16", out, "--force"]) == 0
    capsys.readouterr()
    assert _run(folder) == 1
    assert "was compiled for another import" in capsys.readouterr().err


def test_a_bundle_that_stands_alone_is_run_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--model=tiny", "--dtype=f32") == 0
    answer = capsys.readouterr().out.splitlines()[-1]
    Path("alone").mkdir()
    Path("artifacts/tiny-f32/bundle").rename("alone/bundle")
    assert _run("--dir=alone") == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize("stage", ["compile", "package", "check", "run"])
@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], default_folder(DEFAULT_MODEL, "f16")),
        (["--dtype=bf16"], default_folder(DEFAULT_MODEL, "bf16")),
        (["--model=owner/name"], default_folder("name", "f16")),
        (["--model=owner/name", "--dir=elsewhere"], Path("elsewhere")),
    ],
)
def test_every_stage_looks_in_the_same_folder(
    stage: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([stage, *words, "--quiet"]) == 1
    missing = folder / "import" / "model.json"
    assert capsys.readouterr() == ("", f"error: {missing} is missing; run inv import first\n")


def test_an_unknown_dtype_is_a_wrong_word(capsys: pytest.CaptureFixture[str]) -> None:
    for stage in ("import", "compile", "package", "check", "run"):
        assert main([stage, "--model=demo", "--dtype=f8"]) == 2
        assert capsys.readouterr().err.startswith("error: the dtype f8 is unknown; known are f16")


def test_a_check_tells_its_steps_and_then_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model=tiny", "--dtype=f32"]) == 0
    out, err = capsys.readouterr()
    rows = out.splitlines()
    assert rows[0].startswith("stage")
    assert all(row.endswith(" ok") for row in rows[1:])
    told = [line.split(":")[0] for line in err.splitlines() if line.startswith("check ")]
    done, total = told[-1].removeprefix("check ").split("/")
    assert done == total
    assert len(told) >= 9
    assert "\r" not in err, "a bar of another library"


def test_quiet_leaves_no_word_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["compile", TARGET], ["package"]):
        assert main([*words, "--model=tiny", "--dtype=f32", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
