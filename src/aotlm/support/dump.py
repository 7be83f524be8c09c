"""Where the IR between the compiler's steps goes: --dump-after, and AOTLM_DUMP for any process."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aotlm.errors import AotlmError

DUMP_VARIABLE: Final = "AOTLM_DUMP"
ALL: Final = "all"


@dataclass(frozen=True)
class Dump:
    """Folders, each with the step after which it wants the IR, or ALL; no folder wants nothing."""

    wanted: tuple[tuple[Path, str], ...] = ()

    def wants(self, step: str) -> bool:
        """Say whether anybody wants the IR after the step."""
        return any(name in (step, ALL) for _, name in self.wanted)

    def write(self, step: str, name: str, text: str) -> None:
        """Write a file of that name to every folder that wants the IR after the step.

        Raises:
            AotlmError: it cannot be written.
        """
        for folder, wanted in self.wanted:
            if wanted in (step, ALL):
                _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AotlmError(
            f"the dump {path} was not written: {error.strerror}; name another folder with "
            f"{DUMP_VARIABLE}, or make room"
        ) from error


def dump_of_environment() -> Dump:
    """Return the dump that AOTLM_DUMP asks for: its folder wants the IR after each step.

    Raises:
        AotlmError: something else than a folder is there.
    """
    folder = os.environ.get(DUMP_VARIABLE)
    if folder and Path(folder).exists() and not Path(folder).is_dir():
        raise AotlmError(f"{DUMP_VARIABLE} is {folder}, which is no folder; name one, or a new one")
    return Dump(((Path(folder), ALL),) if folder else ())


def asked_dump(step: str | None, folder: Path) -> Dump:
    """Return a dump of one step (or ALL) into the folder, besides what AOTLM_DUMP asks for."""
    asked = ((folder, step),) if step else ()
    return Dump((*asked, *dump_of_environment().wanted))
