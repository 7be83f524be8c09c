"""What every command of the project shares: help, --debug, errors as one sentence, and an end by a
signal that leaves nothing behind."""

import functools
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from invoke import Context, Task, task

from aotlm.errors import AotlmError, UsageError
from aotlm_runtime.cli.flags import Flag
from aotlm_runtime.errors import AotlmRuntimeError

if TYPE_CHECKING:
    from aotlm.toolchain.engine import Settings

HELP = {
    "model": "Hugging Face id, local folder, GGUF folder or file, or 'demo'",
    "revision": "the commit or branch of a Hugging Face id",
    "dtype": "storage of weights and cache: f16, bf16 or f32",
    "out": "where to write to",
    "force": "replace an existing import",
    "template": "the chat template, of a model that has several",
    "accept_unused": "import a model without what its checkpoint holds and nothing uses",
    "dump_after": "write the IR after this pass, or after 'all'",
    "list_passes": "print the passes in order and stop",
    "dir": "the folder of the model, artifacts/<model>-<dtype>",
    "target": "native, x86-64-v3, x86-64-v4, x86-64-v4+bf16 or the name of a CPU",
    "compress": "pack the archive with zstd",
    "bundle": "a bundle's folder or archive",
    "first": "a bundle's folder or archive",
    "second": "the other one, in the same form",
    "provenance": "the provenance.json of a bundle",
    "key": "a key in PEM form: private to sign, public to verify",
    "sigstore": "sign with the identity of the workflow that this runs in",
    "identity": "who signed with sigstore: a workflow's or a mail address",
    "identity_provider": "who vouches for the identity; default: GitHub Actions",
    "engine": "auto, docker or local: where the stage runs; default: AOTLM_ENGINE, else auto",
    "base_image": "what the images are built on instead of the pinned image",
    "cache": "a folder that keeps the image of the wheels, for another engine to load",
    "tag": "the name of the image; default: aotlm-<model>-<dtype>",
    "peers": "what to compare with: llama.cpp,openvino,torch,torch.compile; default: nothing",
    "build": "measure import and compile as well",
    "repeat": "pairs of a decode step and its limit; default: 100",
    "seconds": "time for one prefill's pairs, and for a peer's pairs of any row; default: 20",
    "threads": "default: the physical cores that this process may use",
    "context": "tokens kept; default: the model's, up to 4096",
    "json": "write the figures to this file as JSON",
    "debug": "show a traceback when something fails",
}

# What tells invoke that a flag is a switch.
_DEFAULTS: Mapping[str, bool] = {"on": True, "off": False}


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command as Ctrl-C does, so that temporary files go with it."""


@contextmanager
def _terminable() -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command(
    name: str, flags: Sequence[Flag] = (), *, is_stage: bool = False
) -> Callable[[Callable[..., Any]], Task]:
    """Make a task of a function: with help, --debug, and errors as one line and an exit code.

    The function also takes `flags` of the runtime, as keywords that `flag_words` makes words of. A
    keyword that is a list[str] is a flag that can be repeated. A stage runs in the toolchain image
    where --engine or the settings say so.
    """

    def wrap(function: Callable[..., Any]) -> Task:
        @functools.wraps(function)
        def body(c: Context, /, debug: bool = False, **words: Any) -> None:
            try:
                engine = words.pop("engine") if is_stage else "local"
                with _terminable():
                    code = _run_elsewhere(name, c, engine, {**words, "debug": debug})
                    if code is None:
                        code = function(c, **words)
            except (AotlmError, AotlmRuntimeError) as error:
                if debug:
                    traceback.print_exc()
                print(f"error: {error}", file=sys.stderr)
                code = 2 if isinstance(error, UsageError) else 1
            except Exception as error:
                if debug:
                    raise
                text = " ".join(str(error).split())
                print(
                    f"error: unexpected {type(error).__name__}: {text}; "
                    "run it again with --debug and report what it shows",
                    file=sys.stderr,
                )
                code = 1
            except KeyboardInterrupt as stop:
                code = 143 if isinstance(stop, Terminated) else 130  # 128 + the signal's number
            if code:
                sys.exit(code)

        signature = inspect.signature(function)
        defaults = {flag.name.replace("-", "_"): _DEFAULTS.get(flag.kind) for flag in flags}
        shared = {"engine": None, "debug": False} if is_stage else {"debug": False}
        more = [
            inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=default)
            for word, default in {**defaults, **shared}.items()
        ]
        own = [
            word
            for word in signature.parameters.values()
            if word.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = [*own, *more]
        body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        texts = {**HELP, **{flag.name.replace("-", "_"): flag.help for flag in flags}}
        known = {word.name: texts[word.name] for word in parameters if word.name in texts}
        lists = [flag.name.replace("-", "_") for flag in flags if flag.kind == "texts"]
        lists += [word.name for word in own if word.annotation == list[str]]
        return task(name=name, help=known, positional=[], auto_shortflags=False, iterable=lists)(
            body
        )

    return wrap


def flag_words(flags: Sequence[Flag], given: Mapping[str, Any]) -> list[str]:
    """Return the words of the runtime's command line for values by name; None was not given."""
    words: list[str] = []
    for flag in flags:
        value = given[flag.name.replace("-", "_")]
        if flag.kind in ("on", "off"):
            words += [f"--{flag.name}"] * (value and flag.kind == "off")
            words += [f"--no-{flag.name}"] * (not value and flag.kind == "on")
        elif value is not None:
            values = value if flag.kind == "texts" else [value]
            words += [f"--{flag.name}={item}" for item in values]
    return words


def _run_elsewhere(name: str, c: Context, engine: str | None, words: dict[str, Any]) -> int | None:
    """Run a stage in the toolchain image and return its exit code; None: it has to run here."""
    if engine == "local":
        return None
    settings = toolchain_settings(c, engine)
    if settings.engine == "local":
        return None
    from aotlm.driver.container import run_stage

    return run_stage(name, words, settings)


def toolchain_settings(
    c: Context, engine: str | None = None, base_image: str | None = None
) -> "Settings":
    """Return what the flags, the environment and the Invoke configuration say of the engine."""
    from aotlm.toolchain.engine import read_settings  # the SDK takes a moment to load

    return read_settings(dict(c.config), engine, base_image)
