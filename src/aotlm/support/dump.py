"""Where the IR between the compiler's steps goes: --dump-after, and AOTLM_DUMP for any process."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
        """Write a file of that name to every folder that wants the IR after the step."""
        for folder, wanted in self.wanted:
            if wanted in (step, ALL):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")


def dump_of_environment() -> Dump:
    """Return the dump that AOTLM_DUMP asks for: its folder wants the IR after each step."""
    folder = os.environ.get(DUMP_VARIABLE)
    return Dump(((Path(folder), ALL),) if folder else ())


def asked_dump(step: str | None, folder: Path) -> Dump:
    """Return a dump of one step (or ALL) into the folder, besides what AOTLM_DUMP asks for."""
    asked = ((folder, step),) if step else ()
    return Dump((*asked, *dump_of_environment().wanted))
