"""A program of several commands: one table says what they are, and argparse reads their words."""

import argparse
import difflib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from aotlm_runtime.cli.console import quiet
from aotlm_runtime.cli.flags import SHARED, Flag, add_flags
from aotlm_runtime.errors import AotlmError


@dataclass(frozen=True)
class Word:
    """What a command takes without a flag, and needs unless it is optional."""

    name: str
    help: str
    is_optional: bool = False


@dataclass(frozen=True)
class Command:
    """A command, its words and flags, and what runs it and returns an exit code; None is 0."""

    name: str
    summary: str
    run: Callable[[argparse.Namespace], int | None]
    flags: tuple[Flag, ...] = ()
    examples: tuple[str, ...] = ()
    words: tuple[Word, ...] = ()

    @property
    def sentence(self) -> str:
        """The summary with a capital first letter."""
        return self.summary[:1].upper() + self.summary[1:]


@dataclass(frozen=True)
class Program:
    """A program by its name on the command line.

    `version` yields the lines of --version; it is told whether -v asks for all that is known.
    """

    name: str
    description: str
    commands: tuple[Command, ...]
    version: Callable[[bool], Iterable[str]]


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command as Ctrl-C does, so that temporary files go with it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at SIGTERM while the block runs; only the main thread hears signals."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_program(program: Program, argv: Sequence[str] | None = None, **more: Any) -> int:
    """Run a command and return its exit code: 0, 1 for an error, 2 for wrong usage.

    Ctrl-C and SIGTERM end it with the code that shells give them, and with no word. `more` are
    attributes that its arguments have besides what the words say.
    """
    with terminable():
        try:
            return _run(program, sys.argv[1:] if argv is None else argv, more)
        except KeyboardInterrupt as stop:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # behind the ^C
            return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def _run(program: Program, words: Sequence[str], more: Mapping[str, Any]) -> int:
    try:
        arguments = _read(program, words)
    except SystemExit as end:  # argparse has printed help (0) or what is wrong (2)
        return int(end.code or 0)
    for name, value in more.items():
        setattr(arguments, name, value)
    with quiet(arguments.quiet):
        return _execute(arguments)


def _execute(arguments: argparse.Namespace) -> int:
    """Run what was read; whatever it raises is one sentence and an exit code."""
    run: Callable[[argparse.Namespace], int | None] = arguments.execute
    try:
        return run(arguments) or 0
    except AotlmError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who read our output has seen enough; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if arguments.debug:
            raise
        text = " ".join(str(error).split())
        print(
            f"error: unexpected {type(error).__name__}: {text}; "
            "run it again with --debug and report what it shows",
            file=sys.stderr,
        )
        return 1


def _read(program: Program, words: Sequence[str]) -> argparse.Namespace:
    """Return what the words say.

    Raises:
        SystemExit: they are wrong, or ask for help or the version; it was printed.
    """
    parser, parsers = _parsers(program)
    named = next((word for word in words if not word.startswith("-")), None)
    if named is not None and named not in parsers:
        parser.error(f"there is no command {named!r}{near(named, parsers)}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(parsers.get(named or "", parser), unknown, _spellings(program, named))
    if arguments.version:
        print(*program.version(arguments.verbose), sep="\n")
        parser.exit()
    if named is None:
        parser.error(f"no command was given; choose from {', '.join(parsers)}")
    return arguments


def _refuse(
    parser: argparse.ArgumentParser, unknown: Sequence[str], spellings: Sequence[str]
) -> NoReturn:
    """Tell the first word that was not understood: a flag before the value behind it."""
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        parser.error(f"the word {unknown[0]!r} has no meaning here; quote a text with spaces")
    flag = flag.partition("=")[0]
    parser.error(f"there is no flag {flag}{near(flag, spellings)}")


def _spellings(program: Program, named: str | None) -> list[str]:
    """Return the flags of a command, as they are written."""
    flags = [
        flag for command in program.commands if command.name == named for flag in command.flags
    ]
    return [name for flag in (*flags, *SHARED) for name in flag.spellings]


def near(word: str, known: Iterable[str], otherwise: str = "--help lists them") -> str:
    """Return a question with the known word that is most like this one, or what else helps."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else f"; {otherwise}"


def _parsers(
    program: Program,
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the program's parser, and each command's by its name."""
    parser = argparse.ArgumentParser(
        prog=program.name,
        description=program.description,
        epilog=_epilog(
            program, [example for one in program.commands for example in one.examples[:1]]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --version: all of it")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in program.commands:
        added = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.sentence}.",
            epilog=_epilog(program, command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for word in command.words:
            n_words = "?" if word.is_optional else None
            added.add_argument(word.name, nargs=n_words, metavar=word.name.upper(), help=word.help)
        add_flags(added, (*command.flags, *SHARED))
        added.set_defaults(execute=command.run)
    return parser, dict(subparsers.choices)


def _epilog(program: Program, examples: Sequence[str]) -> str | None:
    lines = [f"  {program.name} {example}" for example in examples]
    return "\n".join(["examples:", *lines]) if lines else None
