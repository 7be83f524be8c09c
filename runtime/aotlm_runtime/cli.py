"""The command line: `aotlm-run run BUNDLE` and `aotlm-run serve BUNDLE`."""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from aotlm_runtime.errors import AotlmRuntimeError, PromptInvalid

if TYPE_CHECKING:
    from tqdm import tqdm

    from aotlm_runtime.model import Model

_EXAMPLES = """examples:
  aotlm-run run model.tar                          chat; Ctrl-D leaves
  aotlm-run run model.tar --prompt "Why is the sky blue?"
  cat letter.txt | aotlm-run run model.tar --prompt - --no-stats > answer.txt
"""
_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for an error, 2 for wrong usage."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed help (0) or what is wrong (2)
        return int(end.code or 0)
    try:
        return _run(arguments)
    except AotlmRuntimeError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 1
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
        description="Run a language model that was compiled ahead of time.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "run",
        help="answer one prompt, or chat",
        description="Answer one prompt, or chat without --prompt. Text goes to standard output, "
        "figures to standard error.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("bundle", metavar="BUNDLE", help="a folder, a .tar or a .tar.zst")
    add("--prompt", metavar="TEXT", help="answer this and leave; - reads standard input")
    add("--max-tokens", type=_positive, metavar="N", help="end an answer after N tokens")
    add("--raw", action="store_true", help="continue the text, without the chat template")
    add("--threads", type=_positive, metavar="N", help="default: the physical cores allowed")
    add("--context", type=_positive, metavar="N", help="tokens kept; default: up to 4096")
    add("--stats", action=argparse.BooleanOptionalAction, default=True, help="print figures")
    add("--debug", action="store_true", help="print a traceback with an error")
    _add_serve(commands)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from aotlm_runtime.server import command as server

    command = commands.add_parser(
        "serve",
        help="answer OpenAI's clients and a web page",
        description="Serve the model to OpenAI's clients over HTTP, with a page to chat at /.",
        epilog=server.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("bundle", metavar="BUNDLE", help="a folder, a .tar or a .tar.zst")
    server.add_options(command, _positive)
    add("--threads", type=_positive, metavar="N", help="default: the physical cores allowed")
    add("--context", type=_positive, metavar="N", help="tokens kept; default: up to 4096")
    add("--debug", action="store_true", help="print a traceback with an error")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "serve":
        from aotlm_runtime.server.command import serve

        return serve(arguments, lambda: _load(arguments))
    prompt = _read_prompt(arguments.prompt)
    model = _load(arguments)
    from aotlm_runtime.pieces import Options

    options = Options(max_tokens=arguments.max_tokens)
    if prompt is None:
        from aotlm_runtime.console import converse

        return converse(model, raw=arguments.raw, options=options, stats=arguments.stats)
    from aotlm_runtime.console import finish_note, stats_lines, write

    write(model.generate(prompt, options, raw=arguments.raw))
    notes = [*finish_note(model), *(stats_lines(model) if arguments.stats else [])]
    print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)
    return 0


def _read_prompt(text: str | None) -> str | None:
    if text != "-":
        return text
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptInvalid(
            f"standard input is not UTF-8 at byte {error.start}; convert it first"
        ) from error


def _load(arguments: argparse.Namespace) -> "Model":
    from aotlm_runtime.bundle import open_bundle
    from aotlm_runtime.model import load_opened

    with open_bundle(arguments.bundle) as bundle, _progress(bundle.size_bytes) as bar:
        return load_opened(
            bundle, threads=arguments.threads, context=arguments.context, progress=bar.update
        )


@contextlib.contextmanager
def _progress(n_bytes: int) -> "Iterator[tqdm[NoReturn]]":
    """Show a bar on a terminal if verification takes more than a moment; nothing elsewhere."""
    from tqdm import tqdm

    with tqdm(
        total=n_bytes,
        desc="verifying",
        unit="B",
        unit_scale=True,
        leave=False,
        delay=0.5,
        disable=None,
        file=sys.stderr,
    ) as bar:
        yield bar
