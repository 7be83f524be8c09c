"""What `inv compile --list-kernels` prints: each kernel and how a target cuts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from aotlm.emit.attributes import LinearAttrs
from aotlm.errors import AotlmError
from aotlm.kernels.define import declared_kernels
from aotlm.kernels.schedule import (
    AttentionSchedule,
    IntegerSchedule,
    LinearSchedule,
    attention_schedule,
    linear_schedule,
)
from aotlm.targets import Target, portable_targets
from aotlm.weights.codecs import CODECS

_ENTRIES: Final = ("prefill", "decode")
Schedule = LinearSchedule | IntegerSchedule | AttentionSchedule
Choice = Callable[[Target], Schedule]


def list_kernels(import_dir: Path | None) -> str:
    """Return the kernels of a model's import, or all there are, each with every target's schedule.

    Raises:
        AotlmError: there is an import folder, but no modules in it.
    """
    targets = portable_targets()
    width = max(len(target.name) for target in targets)
    lines = []
    for name, schedule in _declared(import_dir) if import_dir else _known():
        lines.append(name)
        lines += [f"  {target.name:{width}}  {_words(schedule(target))}" for target in targets]
    return "\n".join(lines)


def _known() -> Iterator[tuple[str, Choice]]:
    for weight in CODECS:
        yield f"linear {weight}", _linear(weight)
    yield "flash, split_kv", attention_schedule


def _linear(weight: str) -> Choice:
    return partial(linear_schedule, weight=weight)


def _declared(import_dir: Path) -> Iterator[tuple[str, Choice]]:
    """Yield each kernel of both entries: its name with its attributes, and its schedule."""
    for entry in _ENTRIES:
        path = import_dir / f"subgraph0_{entry}.mlir"
        if not path.is_file():
            raise AotlmError(f"{path} is missing; run inv import --force again")
        for name, attrs in declared_kernels(path):
            choice = _linear(attrs.weight) if isinstance(attrs, LinearAttrs) else attention_schedule
            yield f"{entry} {name}  {_words(attrs)}", choice


def _words(record: Any) -> str:
    """Return a record's fields as `name=value`, without what is off: None, False or 0."""
    fields = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return " ".join(f"{name}={_text(value)}" for name, value in fields if value)


def _text(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return f"({_words(value)})"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
