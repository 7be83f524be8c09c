"""Each `.check` file is one behaviour of the emitted IR: its `// EMIT:` lines say of what.

A file is checked once for each of its EMIT lines, with LLVM's own FileCheck.
"""

import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from tests.ir.cases import emitted

FOLDER = Path(__file__).parent
FILECHECK = Path(sysconfig.get_paths()["purelib"]) / "llvm" / "bin" / "FileCheck"
EMIT = "// EMIT:"
PAIRS = [
    (path.name, line.removeprefix(EMIT).strip())
    for path in sorted(FOLDER.glob("*.check"))
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.startswith(EMIT)
]

_emitted = cache(emitted)


@pytest.mark.parametrize(
    ("name", "words"), PAIRS, ids=[f"{name}: {words}" for name, words in PAIRS]
)
def test_the_ir_is_as_described(name: str, words: str) -> None:
    done = subprocess.run(
        [str(FILECHECK), str(FOLDER / name)],
        input=_emitted(words), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_file_emits_something() -> None:
    assert {name for name, _ in PAIRS} == {path.name for path in FOLDER.glob("*.check")}


def test_a_case_can_be_printed_by_a_command() -> None:
    words = "linear tokens=1 n=64 gate=silu target=x86-64-v3"
    command = [sys.executable, "-m", "tests.ir.cases"]
    for arguments in ([words], words.split()):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout == emitted(words) + "\n"
    done = subprocess.run([*command, "linaer"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'linaer' names no case; name one of linear, attention,")


def test_a_check_that_does_not_hold_fails() -> None:
    words = "elementwise kind=silu"
    done = subprocess.run(
        [str(FILECHECK), str(FOLDER / "rms_norm.check")],
        input=_emitted(words), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
