"""The command line: `aotlm COMMAND`. The Invoke tasks are made of the same table."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aotlm import __version__
from aotlm.driver import commands, flags
from aotlm_runtime.cli.command_line import Command, Program, run_program
from aotlm_runtime.cli.flags import RUN

COMMANDS = (
    Command(
        "import",
        "turn a model into MLIR and a weight file, in DIR/import",
        commands.on_engine("import", flags.IMPORT, commands.import_model),
        flags.IMPORT,
        ("import --model demo", "import --model ~/models/mine --dtype bf16 --out artifacts/mine"),
    ),
    Command(
        "compile",
        "compile DIR/import into libraries, in DIR/lib/<target>",
        commands.on_engine("compile", flags.COMPILE, commands.compile_model),
        flags.COMPILE,
        ("compile --model demo", "compile --dir artifacts/mine --target x86-64-v3"),
    ),
    Command(
        "package",
        "make the bundle of DIR: a folder and an archive",
        commands.on_engine("package", flags.PACKAGE, commands.package),
        flags.PACKAGE,
        ("package --model demo", "package --dir artifacts/mine --out mine.tar"),
    ),
    Command(
        "check",
        "compare each stage of the model in DIR with PyTorch",
        commands.check,
        flags.FOLDER,
        ("check --model demo", "check --dir artifacts/mine --model ~/models/mine"),
    ),
    Command(
        "run",
        "answer one prompt with a model or a bundle, or open the chat",
        commands.run,
        (flags.BUNDLE, *flags.FOLDER, *RUN),
        ('run --model demo --prompt "Why is the sky blue?"', "run --bundle mine.tar"),
    ),
    Command(
        "demo",
        "build the demo model where needed, and chat with it",
        commands.demo,
        (flags.DTYPE, *RUN),
        ('demo --prompt "What is the capital of France?"',),
    ),
    Command(
        "repro",
        "build a model twice under other conditions and compare them",
        commands.repro,
        flags.REPRO,
        ("repro --model demo",),
    ),
    Command(
        "compare",
        "compare two bundles, as folders or archives, byte by byte",
        commands.compare,
        flags.COMPARE,
        ("compare --first one.tar --second other.tar",),
    ),
    Command(
        "rebuild",
        "build again what a provenance.json says, and compare",
        commands.rebuild,
        flags.REBUILD,
        ("rebuild --provenance mine/provenance.json",),
    ),
    Command(
        "sign",
        "sign a bundle with a key or with a workflow's identity",
        commands.sign,
        flags.SIGN,
        ("sign --bundle mine.tar --key private.pem",),
    ),
    Command(
        "verify",
        "check a bundle's digests and, given a key, its signature",
        commands.verify,
        flags.VERIFY,
        ("verify --bundle mine.tar --key public.pem",),
    ),
    Command(
        "image",
        "make an image that runs a bundle, without torch and compiler",
        commands.image,
        flags.IMAGE,
        ("image --bundle mine.tar",),
    ),
    Command(
        "toolchain",
        "make the pinned toolchain ready: image, or wheels here",
        commands.toolchain,
        flags.TOOLCHAIN,
        ("toolchain", "toolchain --engine docker"),
    ),
)


def version(everything: bool) -> Iterator[str]:
    """Yield the lines of --version: with `everything` also the commit and what it was pinned to."""
    yield f"aotlm {__version__}"
    if everything:
        from aotlm.support.build_record import origin, toolchain_versions

        here = origin()
        yield f"commit {here.commit}{' with changes' if here.dirty else ''}"
        yield f"pins sha256 {here.pins_sha256}"
        yield from (f"{name} {found}" for name, found in toolchain_versions().items())


PROGRAM = Program(
    "aotlm",
    "Compile Hugging Face causal language models ahead of time into native bundles.",
    COMMANDS,
    version,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for an error, 2 for wrong usage."""
    return run_program(PROGRAM, argv, config=read_config)


def run() -> NoReturn:
    """Run the command line and leave with its exit code."""
    sys.exit(main())


def read_config() -> dict[str, Any]:
    """Return what Invoke's configuration files say, here and in the home folder."""
    from invoke import Config

    config = Config(project_location=Path.cwd())
    config.load_project()
    return dict(config)
