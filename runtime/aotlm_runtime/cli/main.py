"""The command line: `aotlm-run COMMAND BUNDLE`."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from aotlm_runtime.cli import commands, flags
from aotlm_runtime.cli.flags import Flag, add_flags
from aotlm_runtime.errors import AotlmError

_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


@dataclass(frozen=True)
class Command:
    """A command, its flags behind BUNDLE, and what runs it and returns an exit code."""

    name: str
    summary: str
    run: Callable[[argparse.Namespace], int]
    flags: tuple[Flag, ...]
    examples: tuple[str, ...]
    file: str | None = None  # what is read besides the bundle


COMMANDS = (
    Command(
        "chat",
        "chat with a model",
        commands.chat,
        flags.CHAT,
        ("chat model.tar", 'chat model.tar --system "Answer in rhymes." --temperature 0.7'),
    ),
    Command(
        "run",
        "answer one prompt, or chat without one",
        commands.run,
        flags.RUN,
        (
            'run model.tar --prompt "Why is the sky blue?"',
            "run model.tar --prompt - --no-stats < letter.txt > answer.txt",
            'run model.tar --prompt "Name a colour." --json --temperature 0.8 --seed 1',
            'run model.tar --prompt "1, 2, 3," --raw --max-tokens 8 --stop " 5"',
        ),
    ),
    Command(
        "serve",
        "answer OpenAI's clients over HTTP, and chat on a web page",
        commands.serve,
        (*flags.SERVING, *flags.SAMPLING, *flags.LOADING),
        (
            "serve model.tar                      then open http://127.0.0.1:8080",
            "serve model.tar --host 0.0.0.0 --api-key SECRET",
            "serve model.tar --sessions 2 --queue 8 --temperature 0.7",
        ),
    ),
    Command(
        "bench",
        "measure speed and memory, beside what the machine can do",
        commands.bench,
        (*flags.BENCH, *flags.LOADING),
        ("bench model.tar", "bench model.tar --repeat 10 --threads 1 --json"),
    ),
    Command(
        "inspect",
        "print what a bundle is, and verify it",
        commands.inspect,
        (Flag("json", "off", "print JSON"),),
        ("inspect model.tar", "inspect model.tar --json"),
    ),
    Command("verify", "verify every file of a bundle", commands.verify, (), ("verify model.tar",)),
    Command(
        "perplexity",
        "print how well a model predicts a text",
        commands.perplexity,
        (Flag("json", "off", "print the figures as one line of JSON"), *flags.LOADING),
        ("perplexity model.tar book.txt", "perplexity model.tar - --context 1024 < book.txt"),
        file="the text, in UTF-8; - reads standard input",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for an error, 2 for wrong usage."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed help (0) or what is wrong (2)
        return int(end.code or 0)
    try:
        run: Callable[[argparse.Namespace], int] = arguments.execute
        return run(arguments)
    except AotlmError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who read our output has seen enough; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED


def run() -> NoReturn:
    """Run the command line and leave with its exit code."""
    sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aotlm-run",
        description="Run a language model that was compiled ahead of time. Text goes to standard "
        "output, figures to standard error.",
        epilog=_epilog([command.examples[0] for command in COMMANDS]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=_epilog(command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("bundle", metavar="BUNDLE", help="a folder, a .tar or a .tar.zst")
        if command.file:
            added.add_argument("file", metavar="FILE", help=command.file)
        add_flags(added, (*command.flags, *flags.DEBUG))
        added.set_defaults(execute=command.run)
    return parser


def _epilog(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  aotlm-run {example}" for example in examples)])
