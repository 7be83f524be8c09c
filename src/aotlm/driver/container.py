"""The stages on the chosen engine: what a container of the toolchain image may see of this machine.

Paths have the same names inside as outside, so words, messages and outputs are the same too.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from aotlm.capture.demo import demo_gguf
from aotlm.capture.source_hub import fetch_from_hub, is_hub_id
from aotlm.driver.folders import default_folder, model_folder
from aotlm.errors import AotlmError
from aotlm.support.build_record import ORIGIN_VARIABLE, origin
from aotlm.support.dump import DUMP_VARIABLE, dump_of_environment
from aotlm.support.progress import note, shown, terminal_variables
from aotlm.toolchain.container import run_in_container
from aotlm.toolchain.engine import Settings, connect_or_none
from aotlm.toolchain.images import ensure_toolchain, find_toolchain

Words = dict[str, Any]


@dataclass(frozen=True)
class View:
    """What a stage sees: paths to read, folders to write (made where missing), variables."""

    writable: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def run_stage(name: str, words: Words, settings: Settings) -> int | None:
    """Run a stage in the toolchain image and return its exit code; None: it has to run here.

    words: the values of the stage's flags, by the names that they have as arguments.

    Raises:
        AotlmError: Docker was asked for and does not answer, or the model cannot be fetched.
    """
    client = connect_or_none(settings)
    if client is None:
        return None
    image = find_toolchain(client)
    if image is None and settings.engine == "auto":
        note(
            "engine: this machine (Docker has no image of this toolchain yet; "
            "inv toolchain builds it)"
        )
        return None
    if image is None:
        note("engine: docker, building the toolchain image first (some minutes)")
        with shown("toolchain") as progress:
            image, _ = ensure_toolchain(client, settings.base_image, progress)
    else:
        note(f"engine: docker, {image.tags[0]}")
    words, view = _VIEWS[name](words)
    # a container has no checkout to ask
    told = {ORIGIN_VARIABLE: msgspec.json.encode(origin()).decode()}
    dumps = tuple(folder.absolute() for folder, _ in dump_of_environment().wanted)
    dumped = {DUMP_VARIABLE: str(dumps[0])} if dumps else {}
    env = {**view.env, **told, **dumped, **terminal_variables()}
    writable = (*view.writable, *dumps)
    with _folders(writable):
        arguments = [name, *_as_arguments(words)]
        return run_in_container(client, image.tags[0], arguments, view.read_only, writable, env)


def _as_arguments(words: Words) -> list[str]:
    arguments = []
    for name, value in words.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value not in (None, False):
            arguments.append(f"{flag}={value}")
    return arguments


def _import_view(words: Words) -> tuple[Words, View]:
    """The model to read, fetched by this machine where it is not here, and the output folder."""
    model, revision = words["model"], words["revision"]
    out = Path(words["out"] or default_folder(model, words["dtype"])).absolute()
    path = Path(model).expanduser()
    if model == "demo":
        gguf = demo_gguf()
        cache = gguf.parents[3]  # <cache>/aotlm/demo/<digest>/<file>
        return words, View((out,), (gguf,), {"XDG_CACHE_HOME": str(cache)})
    if path.exists():
        return {**words, "model": str(path)}, View((out,), _model_paths(path.absolute()))
    taken = (out / "import").exists() and not (words["force"] or words.get("dump_after"))
    if not is_hub_id(model) or taken:
        return words, View((out,))
    snapshot = fetch_from_hub(model, revision)
    kept = snapshot.parents[1]  # <cache>/models--<owner>--<name>/snapshots/<commit>
    env = {"HF_HUB_CACHE": str(kept.parent), "HF_HUB_OFFLINE": "1"}
    return words, View((out,), (kept,), env)


def _model_paths(path: Path) -> tuple[Path, ...]:
    """The model's path, and the files elsewhere that links in its folder lead to."""
    linked = {entry.resolve() for entry in (path.iterdir() if path.is_dir() else ())}
    outside = (file for file in linked if not file.is_relative_to(path.resolve()))
    return (path, *sorted(file for file in outside if file.exists()))


def _folder_view(words: Words) -> tuple[Words, View]:
    """The model's folder, and the folder of the archive where another one is named."""
    folder = model_folder(words["dir"], words["model"], words["dtype"]).absolute()
    folders = [folder] if folder.is_dir() else []
    if words.get("out"):
        folders.append(Path(words["out"]).absolute().parent)
    return words, View(tuple(dict.fromkeys(folders)))


_VIEWS: Final[Mapping[str, Callable[[Words], tuple[Words, View]]]] = {
    "import": _import_view,
    "compile": _folder_view,
    "package": _folder_view,
}


@contextlib.contextmanager
def _folders(paths: tuple[Path, ...]) -> Iterator[None]:
    """Make the folders, so that the caller owns them; those that stay empty are removed again.

    Raises:
        AotlmError: one cannot be made.
    """
    made = [path for path in paths if not path.exists()]
    for path in made:
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise AotlmError(
                f"cannot make the folder {path}: {error.strerror}; name another one"
            ) from error
    try:
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)
