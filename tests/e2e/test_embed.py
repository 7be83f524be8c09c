"""The static library by itself, in a C program."""

import subprocess
import sys
from pathlib import Path

from aotlm_runtime import GenerationOptions
from aotlm_runtime.bundle.manifest import read_manifest
from aotlm_runtime.model import Model
from tests.e2e.conftest import Built

SOURCE = Path(__file__).parents[2] / "examples" / "embed" / "main.c"
MAX_LINES = 200
N_TOKENS = 32
PROMPT = "The lighthouse keeper opened the door and saw"


def test_the_example_is_short() -> None:
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_example_prints_the_ids_of_the_runtime(
    built: Built, model: Model, tmp_path: Path
) -> None:
    program = tmp_path / "embed"
    _compile(built.bundle, program)
    ids = model.text.encode(PROMPT)
    command = [
        str(program),
        str(built.bundle / "weights.safetensors"),
        str(N_TOKENS),
        *map(str, ids),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    printed = [int(word) for word in result.stdout.split()]
    assert printed == _runtime_ids(model, ids)
    assert len(printed) == N_TOKENS


def _compile(bundle: Path, program: Path) -> None:
    (library,) = read_manifest(bundle / "manifest.json").libraries
    include, static = (bundle / library.header).parent, bundle / library.static
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28"]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    inputs = [str(SOURCE), str(static), "-lm", "-lpthread"]
    words = [*compiler, *flags, *inputs, "-o", str(program)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr


def _runtime_ids(model: Model, ids: list[int]) -> list[int]:
    model.session.rewind(0)
    options = GenerationOptions(max_tokens=N_TOKENS)
    return [token.id for piece in model.stream(ids, options) for token in piece.tokens]
