"""The commands as Invoke tasks: each takes its flags as keywords and runs the command line."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke import Collection, Context, Task, task

from aotlm_runtime.cli.command_line import Command, Program, run_program
from aotlm_runtime.cli.flags import SHARED, Flag

# What tells Invoke that a flag is a switch.
_DEFAULTS: Mapping[str, bool] = {"on": True, "off": False}


def tasks_of(program: Program) -> Collection:
    """Return the commands of a program as tasks of the same names and flags."""
    return Collection(*(as_task(program, command) for command in program.commands))


def as_task(program: Program, command: Command) -> Task:
    """Return one command as a task."""
    flags = _with_spellings((*command.flags, *SHARED))

    def body(c: Context, /, **given: Any) -> None:
        named = [given[word.name] for word in command.words if given[word.name] is not None]
        words = [command.name, *named, *flag_words(flags, given)]
        code = run_program(program, words, config=lambda: dict(c.config))
        if code:
            sys.exit(code)

    body.__doc__ = f"{command.sentence}."
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("c", inspect.Parameter.POSITIONAL_ONLY),
            *(
                inspect.Parameter(word.name, inspect.Parameter.KEYWORD_ONLY, default=None)
                for word in command.words
            ),
            *(
                inspect.Parameter(
                    flag.attribute, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(flag.kind)
                )
                for flag in flags
            ),
        ]
    )
    return task(
        name=command.name,
        help={word.name: word.help for word in command.words}
        | {flag.attribute: flag.explained for flag in flags},
        positional=[
            word.name
            for word in command.words
            if not word.is_optional or _has_word(program, command)
        ],
        auto_shortflags=False,
        iterable=[flag.attribute for flag in flags if flag.kind == "texts"],
    )(body)


def _has_word(program: Program, command: Command) -> bool:
    """Say whether a word, no flag and no task, stands behind the task on the command line.

    Invoke asks for every positional word of a task, so an optional one is positional only then.
    """
    behind = sys.argv[sys.argv.index(command.name) + 1 :] if command.name in sys.argv else []
    tasks = {known.name for known in program.commands}
    return bool(behind) and not behind[0].startswith("-") and behind[0] not in tasks


def _with_spellings(flags: Sequence[Flag]) -> list[Flag]:
    """Return the flags, and each other long spelling of one as a flag of its own."""
    spelled = []
    for flag in flags:
        others = [word.removeprefix("--") for word in flag.also if word.startswith("--")]
        spelled += [flag, *(replace(flag, name=name, also=()) for name in others)]
    return spelled


def flag_words(flags: Sequence[Flag], given: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line for values by name; None was not given."""
    words: list[str] = []
    for flag in flags:
        value = given[flag.attribute]
        if flag.kind in ("on", "off"):
            words += [f"--{flag.name}"] * (value and flag.kind == "off")
            words += [f"--no-{flag.name}"] * (not value and flag.kind == "on")
        elif value is not None:
            values = value if flag.kind == "texts" else [value]
            words += [f"--{flag.name}={item}" for item in values]
    return words
