"""The commands of the project: `inv --list` names them, `inv -h TASK` explains one."""

import subprocess
import sys
from pathlib import Path

from invoke import Context

from aotlm.commands import command
from aotlm.demo import default_folder
from aotlm.errors import UsageError

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


@command("toolchain")
def toolchain(c: Context) -> None:
    """Check and print the versions of the pinned toolchain."""
    from aotlm.toolchain.check import check_toolchain

    for name, version in check_toolchain().items():
        print(f"{name} {version}")


@command("import")
def import_(
    c: Context,
    model: str = MODEL,
    revision: str = "",
    dtype: str = "f16",
    out: str = "",
    force: bool = False,
    dump_after: str = "",
    list_passes: bool = False,
) -> None:
    """Turn a model into MLIR and a weight file, in DIR/import."""
    from aotlm import build

    if list_passes:
        print(build.list_passes())
        return
    folder = build.import_model(
        model,
        revision=revision or None,
        dtype=dtype,
        out=Path(out) if out else None,
        force=force,
        dump_after=dump_after or None,
    )
    print(f"imported into {folder}")


@command("compile")
def compile_(
    c: Context,
    dir: str = "",
    target: str = "native",
    dump_after: str = "",
    list_passes: bool = False,
) -> None:
    """Compile DIR/import into libraries, in DIR/lib/<target>."""
    from aotlm.codegen.compile import compile_import
    from aotlm.codegen.lower import step_list
    from aotlm.progress import shown

    if list_passes:
        print(step_list())
        return
    with shown("compile") as progress:
        library = compile_import(
            _folder(dir), target, dump_after=dump_after or None, progress=progress
        )
    print(f"compiled {library.shared} in {_folder(dir)} for the CPU {library.cpu}")
    if target == "native":
        print(f"this library runs on CPUs like this one only ({', '.join(library.features)})")


@command("package")
def package(c: Context, dir: str = "", out: str = "", compress: bool = False) -> None:
    """Make the bundle of DIR: a folder and an archive."""
    from aotlm.bundle.package import package
    from aotlm.progress import shown

    with shown("package") as progress:
        archive = package(_folder(dir), Path(out) if out else None, compress, progress=progress)
    print(f"packaged {_folder(dir) / 'bundle'} and {archive}")


@command("run")
def run(
    c: Context,
    bundle: str = "",
    prompt: str = "",
    max_tokens: str = "",
    raw: bool = False,
    threads: str = "",
    stats: bool = True,
) -> int:
    """Answer one prompt with a bundle, or open the chat."""
    if not bundle:
        raise UsageError("no bundle was named; give --bundle=FOLDER or --bundle=ARCHIVE")
    from aotlm_runtime.cli import main

    given = {"--prompt": prompt, "--max-tokens": max_tokens, "--threads": threads}
    words = [f"{flag}={value}" for flag, value in given.items() if value]
    flags = ["--stats" if stats else "--no-stats", *(["--raw"] if raw else [])]
    return main([f"--bundle={bundle}", *words, *flags])


@command("check")
def check(c: Context, dir: str = "", model: str = "") -> int:
    """Compare each stage of the model in DIR with PyTorch."""
    from aotlm.check import check

    return check(_folder(dir), model=model or None)


@command("demo")
def demo(c: Context, prompt: str = "", dtype: str = "f16") -> int:
    """Build the demo model where needed, and chat with it."""
    from aotlm.demo import build_demo
    from aotlm_runtime.cli import main

    bundle = build_demo(dtype, default_folder("demo", dtype))
    return main([f"--bundle={bundle}", *([f"--prompt={prompt}"] if prompt else [])])


@command("test")
def test(c: Context) -> int:
    """Run all tests."""
    return subprocess.call([sys.executable, "-m", "pytest", "-q"])


@command("lint")
def lint(c: Context) -> int:
    """Check style, types and pins of the whole tree."""
    from aotlm.toolchain.lint import lint

    return lint()


def _folder(dir: str) -> Path:
    """DIR, or the default model's folder."""
    return Path(dir) if dir else default_folder(MODEL, "f16")
