"""What is refused, with one sentence each: spoiled bundles, a lesser CPU, an existing import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotlm_runtime.cli import main as cli
from aotlm_runtime.host import cpu
from tests.e2e.conftest import TARGET, Built

ROOT = Path(__file__).parents[2]


def _refusal(bundle: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a bundle that must be refused; return the sentence."""
    assert cli.main(["run", str(bundle), "--prompt", "x"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_an_edited_weight_and_a_truncated_file_are_refused(
    spoiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = spoiled / "weights.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    assert "'weights.safetensors'" in (edited := _refusal(spoiled, capsys))
    assert "was edited or damaged: its blake3 is" in edited
    os.truncate(weights, size - 1)
    assert f"has {size - 1} bytes, but the manifest says {size}" in _refusal(spoiled, capsys)


def test_a_cpu_without_a_feature_is_told_its_name(
    built: Built, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = cpu.cpu_features()
    monkeypatch.setattr(cpu, "cpu_features", lambda: present - {"fma"})
    expected = f"this CPU cannot run the bundle: {TARGET} needs fma;"
    assert expected in _refusal(built.bundle, capsys)


def test_importing_again_needs_force_and_changes_nothing(built: Built) -> None:
    before = _snapshot(built.out)
    command = [sys.executable, "-m", "invoke", "import", "--model=demo", "--dtype=f32"]
    result = subprocess.run(
        [*command, f"--out={built.out}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {built.out / 'import'} exists already; use --force")
    assert result.stderr.count("\n") == 1
    assert _snapshot(built.out) == before


def _snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of every file; bytes cannot change without the time."""
    return {
        path.relative_to(folder).as_posix(): (status.st_ino, status.st_size, status.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        for status in [path.stat()]
    }
