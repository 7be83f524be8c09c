"""Outputs are whole or absent."""

import contextlib
import errno
import subprocess
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file, new_folder


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "out"
    for name in ("first", "second"):
        with new_folder(final) as made:
            (made / name).write_text("x")
    assert _names(final) == ["second"]
    assert _names(final.parent) == ["out"]


def test_a_failure_keeps_the_old_output_and_leaves_nothing_else(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as made:
        (made / "old").write_text("x")
    with new_file(tmp_path / "file") as path:
        path.write_text("old")
    with contextlib.suppress(KeyError), new_folder(tmp_path / "out") as made:
        (made / "new").write_text("x")
        raise KeyError
    with contextlib.suppress(KeyError), new_file(tmp_path / "file") as path:
        path.write_text("new")
        raise KeyError
    assert _names(tmp_path) == ["file", "out"]
    assert _names(tmp_path / "out") == ["old"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(AotlmError, match=r"out was not written: No space left.*make room"),
        new_folder(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert _names(tmp_path) == []


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_makes_is_not(
    tmp_path: Path,
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    live = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / f".out.{dead.pid}.tmp").mkdir()
        (tmp_path / f".out.{live.pid}.tmp").mkdir()
        with new_folder(tmp_path / "out"):
            pass
        assert _names(tmp_path) == [f".out.{live.pid}.tmp", "out"]
    finally:
        live.kill()
        live.wait()
