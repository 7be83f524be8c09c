"""Lines of a model's own source, as errors name them: file name and line, without folders."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Final

import torch

UNKNOWN_LINE: Final = "?"
_STANDARD: Final = sysconfig.get_path("stdlib")
_OURS: Final = str(Path(__file__).parents[1])


def is_of_model(path: str) -> bool:
    """Say whether a file is the model's: not of torch, of Python itself or of this compiler."""
    if "site-packages" in path:
        return "/torch/" not in path
    return not path.startswith(("<", _STANDARD, _OURS))


def line_name(path: str, number: int | None) -> str:
    """Return a line's name without folders: modeling_llama.py:12."""
    return f"{Path(path).name}:{number}"


def raising_line(error: BaseException) -> str:
    """Return the model's innermost line behind an error; of an error and its cause, the cause's."""
    for raised in reversed(causes(error)):
        for frame in reversed(traceback.extract_tb(raised.__traceback__)):
            if is_of_model(frame.filename):
                return line_name(frame.filename, frame.lineno)
    return UNKNOWN_LINE


def traced_line(node: torch.fx.Node) -> str:
    """Return the model's innermost line that a node of a trace comes from."""
    for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
        found = re.match(r'\s*File "(.*)", line (\d+)', line)
        if found and is_of_model(found[1]):
            return line_name(found[1], int(found[2]))
    return UNKNOWN_LINE


def causes(error: BaseException | None) -> list[BaseException]:
    """Return an error, what caused it, what caused that, and so on."""
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
