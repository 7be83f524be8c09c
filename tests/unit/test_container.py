"""What a stage in a container is told and sees; the engine's own part is in tests/toolchain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotlm.driver import container
from aotlm.errors import AotlmError
from aotlm.toolchain.engine import Settings

WORDS = {"dir": None, "model": None, "dtype": "f16"}


class Seen(SimpleNamespace):
    """What the engine was asked for."""

    words: Sequence[str]
    read_only: Sequence[Path]
    writable: Sequence[Path]
    env: Mapping[str, str]
    had: list[bool]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    """An engine that has the image, and remembers what it is to run."""
    seen = Seen()

    def run(
        client: object,
        image: str,
        words: Sequence[str],
        read_only: Sequence[Path],
        writable: Sequence[Path],
        env: Mapping[str, str],
    ) -> int:
        seen.words, seen.read_only, seen.writable, seen.env = words, read_only, writable, env
        seen.had = [path.is_dir() for path in writable]
        return 0

    image = SimpleNamespace(tags=["toolchain:test"])
    monkeypatch.setattr(container, "connect_or_none", lambda settings: object())
    monkeypatch.setattr(container, "find_toolchain", lambda client: image)
    monkeypatch.setattr(container, "run_in_container", run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AOTLM_DUMP", raising=False)
    return seen


def run(name: str = "compile", **words: object) -> None:
    assert container.run_stage(name, {**WORDS, **words}, Settings("docker", None)) == 0


def test_a_dump_of_the_environment_reaches_the_container(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    monkeypatch.setenv("AOTLM_DUMP", "wanted/here")
    run(dir=str(model))
    wanted = tmp_path / "wanted/here"
    assert seen.env["AOTLM_DUMP"] == str(wanted)
    assert list(seen.writable) == [model, wanted]
    assert seen.had == [True, True]
    assert not wanted.exists()  # the stage wrote nothing into it


def test_without_it_the_container_is_told_of_none(seen: Seen, tmp_path: Path) -> None:
    run(dir=str(tmp_path))
    assert "AOTLM_DUMP" not in seen.env
    assert list(seen.writable) == [tmp_path]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_dump_that_cannot_be_is_one_sentence(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / place))
    sentence = "AOTLM_DUMP is .*file, which is no folder|cannot make the folder .*below: Not a dir"
    with pytest.raises(AotlmError, match=sentence):
        run(dir=str(tmp_path))
