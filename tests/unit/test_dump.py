"""Where dumps go, and places where they cannot."""

from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.support.dump import asked_dump, dump_of_environment


def test_a_file_is_written_to_each_folder_that_wants_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / "all"))
    dump = asked_dump("one", tmp_path / "asked")
    dump.write("one", "a/x.mlir", "1")
    dump.write("two", "a/y.mlir", "2")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.mlir"))
    assert found == ["all/a/x.mlir", "all/a/y.mlir", "asked/a/x.mlir"]


def test_a_file_in_the_place_of_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / "file"))
    with pytest.raises(AotlmError, match=r"AOTLM_DUMP is .*file, which is no folder; name"):
        dump_of_environment()
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / "file" / "below"))
    with pytest.raises(AotlmError, match=r"the dump .*x\.mlir was not written: Not a directory"):
        dump_of_environment().write("step", "x.mlir", "")
