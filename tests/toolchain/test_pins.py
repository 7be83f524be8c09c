"""The pins: one place with versions, and a lock that agrees."""

import shutil
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.toolchain.lock import write_lock
from aotlm.toolchain.pins import (
    LOCKS,
    PINS,
    ROOT,
    LockFile,
    is_pinned_image,
    lock_problems,
    read_pins,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (PINS, *(file.path for file in LOCKS)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_pins_and_lock_of_the_repository_agree() -> None:
    assert lock_problems() == []


def test_a_changed_pin_is_a_problem(folder: Path) -> None:
    pins = read_pins()
    _edit(folder / PINS, f'ziglang = "{pins.wheels["ziglang"]}"', 'ziglang = "0.1"')
    _edit(folder / PINS, f'ninja = "{pins.peers["ninja"]}"', 'ninja = "0.1"')
    assert lock_problems(folder) == [
        f"ziglang is 0.1 in pins.toml but {pins.wheels['ziglang']} in requirements.lock",
        f"ninja is 0.1 in pins.toml but {pins.peers['ninja']} in peers.lock",
    ]


def test_a_pin_that_was_never_locked_is_a_problem(folder: Path) -> None:
    _edit(folder / PINS, "[wheels]", '[wheels]\nblack = "1.0"')
    assert lock_problems(folder) == ["black is 1.0 in pins.toml but absent in requirements.lock"]


@pytest.mark.parametrize(("file", "name"), [(LOCKS[0], "ruff"), (LOCKS[1], "ninja")])
def test_versions_that_nothing_has_are_one_sentence(
    folder: Path, file: LockFile, name: str
) -> None:
    before = (folder / file.path).read_bytes()
    version = file.chosen(read_pins())[name]
    _edit(folder / PINS, f'{name} = "{version}"', f'{name} = "0.0.0.1"')
    with pytest.raises(AotlmError, match="no set of packages satisfies"):
        write_lock(file, folder)
    assert (folder / file.path).read_bytes() == before


@pytest.mark.parametrize("file", LOCKS)
def test_an_entry_without_hashes_is_a_problem(folder: Path, file: LockFile) -> None:
    with (folder / file.path).open("a") as lock:
        lock.write("left-pad==1.0\n")
    assert lock_problems(folder) == [f"left-pad==1.0 in {file.name} has no hash"]


@pytest.mark.parametrize("file", LOCKS)
def test_an_index_in_the_lock_is_a_problem(folder: Path, file: LockFile) -> None:
    with (folder / file.path).open("a") as lock:
        lock.write("--index-url https://example.invalid\n")
    assert "names a package index" in lock_problems(folder)[0]


@pytest.mark.parametrize("text", ["[python", "[wheels]\n", "python = 3\nwheels = 4\n"])
def test_broken_pins_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    with pytest.raises(AotlmError, match="is broken"):
        read_pins(path)


def test_missing_pins_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AotlmError, match="is missing"):
        read_pins(tmp_path / "pins.toml")


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "is_pinned"),
    [
        (f"python@{DIGEST}", True),
        (f"registry:5000/python:3.11-slim@{DIGEST}", True),
        (f"python@{DIGEST} ", False),
        (f"python@{DIGEST}0", False),
        (f"python@{DIGEST}\n", False),
        (f"python@{DIGEST[:-1]}", False),
        (f"python@{DIGEST.upper()}", False),
        (f"@{DIGEST}", False),
        ("python:3.11", False),
    ],
)
def test_an_image_is_pinned_by_a_whole_digest_at_the_end_of_its_name(
    name: str, is_pinned: bool
) -> None:
    assert is_pinned_image(name) == is_pinned
