"""The command line: `aotlm-run COMMAND BUNDLE`."""

import sys
from collections.abc import Iterator, Sequence

from aotlm_runtime import __version__
from aotlm_runtime.cli import commands, flags
from aotlm_runtime.cli.command_line import Command, Program, Word, run_program
from aotlm_runtime.cli.flags import Flag

_BUNDLE = Word("bundle", "a folder, a .tar or a .tar.zst")

COMMANDS = (
    Command(
        "chat",
        "chat with a model",
        commands.chat,
        flags.CHAT,
        ("chat model.tar", 'chat model.tar --system "Answer in rhymes." --temperature 0.7'),
        (_BUNDLE,),
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
        (_BUNDLE,),
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
        (_BUNDLE,),
    ),
    Command(
        "bench",
        "measure speed and memory, beside what the machine can do",
        commands.bench,
        (*flags.BENCH, *flags.LOADING),
        ("bench model.tar", "bench model.tar --repeat 10 --threads 1 --json"),
        (_BUNDLE,),
    ),
    Command(
        "inspect",
        "print what a bundle is, and verify it",
        commands.inspect,
        (Flag("json", "off", "print JSON"),),
        ("inspect model.tar", "inspect model.tar --json"),
        (_BUNDLE,),
    ),
    Command(
        "verify",
        "verify every file of a bundle, and its signature",
        commands.verify,
        (Flag("key", "text", "check the signature with this public key, in PEM form", "FILE"),),
        ("verify model.tar", "verify model.tar --key public.pem"),
        (_BUNDLE,),
    ),
    Command(
        "perplexity",
        "print how well a model predicts a text",
        commands.perplexity,
        (Flag("json", "off", "print the figures as one line of JSON"), *flags.LOADING),
        ("perplexity model.tar book.txt", "perplexity model.tar - --context 1024 < book.txt"),
        (_BUNDLE, Word("file", "the text, in UTF-8; - reads standard input")),
    ),
)


def version(everything: bool) -> Iterator[str]:
    """Yield the lines of --version."""
    yield f"aotlm-run {__version__}"
    if everything:
        yield f"python {sys.version.split()[0]}"


PROGRAM = Program(
    "aotlm-run",
    "Run a language model that was compiled ahead of time. Text goes to standard output, "
    "figures to standard error.",
    COMMANDS,
    version,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for an error, 2 for wrong usage."""
    return run_program(PROGRAM, argv)
