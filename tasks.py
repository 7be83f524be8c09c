"""The commands of the project: `inv --list` names them, `inv -h TASK` explains one."""

import subprocess
import sys
from pathlib import Path

from invoke import Context

from aotlm.commands import command, toolchain_settings
from aotlm.demo import DEFAULT_MODEL, default_folder
from aotlm.errors import UsageError
from aotlm.progress import shown


@command("toolchain")
def toolchain(c: Context, engine: str | None = None, base_image: str | None = None) -> None:
    """Make the pinned toolchain ready: image, or wheels here."""
    from aotlm.toolchain.prepare import prepare_toolchain

    prepare_toolchain(toolchain_settings(c, engine, base_image))


@command("image")
def image(
    c: Context, bundle: str | None = None, tag: str | None = None, base_image: str | None = None
) -> None:
    """Make an image that runs a bundle, without torch and compiler."""
    if not bundle:
        raise UsageError("no bundle was named; give --bundle=FOLDER or --bundle=ARCHIVE")
    from aotlm.toolchain.prepare import prepare_image

    prepare_image(Path(bundle), tag, toolchain_settings(c, None, base_image))


@command("import", is_stage=True)
def import_(
    c: Context,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    dtype: str = "f16",
    out: str | None = None,
    force: bool = False,
    dump_after: str | None = None,
    list_passes: bool = False,
) -> None:
    """Turn a model into MLIR and a weight file, in DIR/import."""
    from aotlm import compiler
    from aotlm.progress import shown

    if list_passes:
        print(compiler.list_passes())
        return
    with shown("import") as progress:
        folder = compiler.import_model(
            model,
            revision,
            dtype,
            Path(out) if out else None,
            force=force,
            dump_after=dump_after,
            progress=progress,
        )
    print(f"imported into {folder}")


@command("compile", is_stage=True)
def compile_(
    c: Context,
    dir: str | None = None,
    target: str = "native",
    dump_after: str | None = None,
    list_passes: bool = False,
) -> None:
    """Compile DIR/import into libraries, in DIR/lib/<target>."""
    from aotlm.codegen.compile import compile_import
    from aotlm.codegen.lower import step_list

    if list_passes:
        print(step_list())
        return
    with shown("compile") as progress:
        library = compile_import(_folder(dir), target, dump_after=dump_after, progress=progress)
    print(f"compiled {library.shared} in {_folder(dir)} for the CPU {library.cpu}")
    if target == "native":
        print(f"this library runs on CPUs like this one only ({', '.join(library.features)})")


@command("package", is_stage=True)
def package(
    c: Context, dir: str | None = None, out: str | None = None, compress: bool = False
) -> None:
    """Make the bundle of DIR: a folder and an archive."""
    from aotlm.bundle.package import package

    with shown("package") as progress:
        archive = package(_folder(dir), Path(out) if out else None, compress, progress=progress)
    print(f"packaged {_folder(dir) / 'bundle'} and {archive}")


@command("run")
def run(
    c: Context,
    bundle: str | None = None,
    prompt: str | None = None,
    max_tokens: str | None = None,
    raw: bool = False,
    threads: str | None = None,
    context: str | None = None,
    stats: bool = True,
) -> int:
    """Answer one prompt with a bundle, or open the chat."""
    if not bundle:
        raise UsageError("no bundle was named; give --bundle=FOLDER or --bundle=ARCHIVE")
    from aotlm_runtime.cli import main

    names = ("prompt", "max-tokens", "threads", "context")
    given = zip(names, (prompt, max_tokens, threads, context), strict=True)
    words = [f"--{name}={value}" for name, value in given if value is not None]
    flags = ["--stats" if stats else "--no-stats", *(["--raw"] if raw else [])]
    return main(["run", *words, *flags, bundle])


@command("check")
def check(c: Context, dir: str | None = None, model: str | None = None) -> int:
    """Compare each stage of the model in DIR with PyTorch."""
    from aotlm.check import check

    return check(_folder(dir), model=model)


@command("demo")
def demo(c: Context, prompt: str | None = None, dtype: str = "f16") -> int:
    """Build the demo model where needed, and chat with it."""
    from aotlm.demo import build_demo
    from aotlm_runtime.cli import main

    bundle = build_demo(dtype, default_folder("demo", dtype))
    return main(["run", *([] if prompt is None else [f"--prompt={prompt}"]), str(bundle)])


@command("test")
def test(c: Context) -> int:
    """Run all tests."""
    return subprocess.call([sys.executable, "-m", "pytest", "-q"])


@command("lock")
def lock(c: Context) -> None:
    """Write docker/requirements.lock anew from docker/pins.toml."""
    from aotlm.toolchain.lock import write_lock

    print(f"wrote {write_lock()}")


@command("lint")
def lint(c: Context) -> int:
    """Check style, types and pins of the whole tree."""
    from aotlm.toolchain.lint import lint

    return lint()


def _folder(dir: str | None) -> Path:
    """DIR, or the default model's folder."""
    return Path(dir) if dir else default_folder(DEFAULT_MODEL, "f16")
