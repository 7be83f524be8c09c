"""What each command does. Heavy imports wait until one runs, so that help comes at once."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aotlm.driver.folders import DEMO, choose_dtype, default_folder, model_folder
from aotlm.errors import UsageError
from aotlm.support.progress import note, shown
from aotlm.support.timings import timed
from aotlm_runtime.cli import commands as runtime
from aotlm_runtime.cli.console import is_quiet
from aotlm_runtime.cli.flags import SHARED, Flag

Run = Callable[[Namespace], int | None]

_LISTS = ("list_passes", "list_ops", "list_kernels")  # what prints a table of ours and stops


def on_engine(name: str, flags: tuple[Flag, ...], run: Run) -> Run:
    """Return a stage that runs in the toolchain image where --engine or the settings say so."""

    def choose(arguments: Namespace) -> int | None:
        lists = any(getattr(arguments, each, False) for each in _LISTS)
        code = None if lists else _run_elsewhere(name, flags, arguments)
        return run(arguments) if code is None else code

    return choose


def _run_elsewhere(name: str, flags: tuple[Flag, ...], arguments: Namespace) -> int | None:
    """Run a stage in the toolchain image and return its exit code; None: it has to run here."""
    if arguments.engine == "local":
        return None
    from aotlm.toolchain.engine import read_settings  # the SDK takes a moment to load

    settings = read_settings(arguments.config(), arguments.engine)
    if settings.engine == "local":
        return None
    from aotlm.driver.container import run_stage

    passed = [flag for flag in (*flags, *SHARED) if flag.name != "engine"]
    return run_stage(name, {flag.attribute: vars(arguments)[flag.attribute] for flag in passed},
                     settings)  # fmt: skip


def import_model(arguments: Namespace) -> None:
    """Import or only dump, or list the passes or the ops."""
    from aotlm.driver import compiler

    if arguments.list_passes or arguments.list_ops:
        print(compiler.list_passes() if arguments.list_passes else compiler.list_ops())
        return
    where = (arguments.model, arguments.revision, arguments.dtype, _path(arguments.out))
    with timed(arguments.time_passes) as timings, shown("import") as progress:
        watched: Any = {"timings": timings, "progress": progress}
        if arguments.dump_after:
            folder = compiler.dump_model(*where, dump_after=arguments.dump_after, **watched)
            _say(f"dumped into {folder}; nothing was imported")
        else:
            folder = compiler.import_model(
                *where,
                force=arguments.force,
                accept_unused=arguments.accept_unused,
                template=arguments.template,
                **watched,
            )
            _say(f"imported into {folder}")


def compile_model(arguments: Namespace) -> None:
    """Compile, or list the steps or the kernels."""
    from aotlm.codegen.compile import compile_import
    from aotlm.codegen.lower import step_list

    if arguments.list_passes:
        print(step_list())
        return
    if arguments.list_kernels:
        from aotlm import kernels

        is_named = arguments.dir or arguments.model
        print(kernels.list_kernels(_folder(arguments) / "import" if is_named else None))
        return
    folder, target = _folder(arguments), arguments.target
    with timed(arguments.time_passes) as timings, shown("compile") as progress:
        library = compile_import(
            folder,
            target,
            prefix=arguments.prefix,
            dump_after=arguments.dump_after,
            timings=timings,
            progress=progress,
        )
    _say(f"compiled {library.shared} in {folder} for the CPU {library.cpu}")
    if target == "native":
        _say(f"this library runs on CPUs like this one only ({', '.join(library.features)})")


def package(arguments: Namespace) -> None:
    """Package what import and compile made."""
    from aotlm.bundle.package import package

    folder, out = _folder(arguments), _path(arguments.out)
    with shown("package") as progress:
        archive = package(folder, out, arguments.compress, progress=progress)
    _say(f"packaged {folder / 'bundle'} and {archive}")


def check(arguments: Namespace) -> int:
    """Compare with PyTorch, and print the table."""
    from aotlm.check import check

    return check(_folder(arguments), arguments.model)


def run(arguments: Namespace) -> int:
    """Answer a prompt, or chat, with the bundle that is named or the model's own."""
    if arguments.bundle:
        return _answer(arguments, Path(arguments.bundle))
    from aotlm.driver.build import ensure_packaged

    folder = _folder(arguments)
    if ensure_packaged(folder, shown):
        note(f"packaged {folder / 'bundle'} first")
    return _answer(arguments, folder / "bundle")


def demo(arguments: Namespace) -> int:
    """Bring the demo up to date and answer a prompt, or chat, with it."""
    from aotlm.driver.build import Wanted, build_stages

    out = default_folder(DEMO, arguments.dtype)
    ran = build_stages(Wanted(DEMO, None, choose_dtype(DEMO, arguments.dtype)), out, shown)
    note(f"{out}: {' and '.join(ran)} done" if ran else f"{out}: up to date, nothing rebuilt")
    return _answer(arguments, out / "bundle")


def _answer(arguments: Namespace, bundle: Path) -> int:
    return runtime.run(Namespace(**{**vars(arguments), "bundle": str(bundle)}))


def repro(arguments: Namespace) -> None:
    """Build twice and compare."""
    from aotlm.repro.repro import Wanted, repro

    dtype = choose_dtype(arguments.model, arguments.dtype)
    wanted = Wanted(arguments.model, arguments.revision, dtype, arguments.target)
    name = f"repro-{Path(arguments.model).name}"
    folder = _path(arguments.out) or default_folder(name, dtype)
    print(f"identical: both archives have the sha256 {repro(wanted, folder.resolve())}")


def compare(arguments: Namespace) -> None:
    """Compare two bundles."""
    from aotlm.repro.compare import bundle_digest
    from aotlm.repro.same import check_same

    one, two = named(arguments, "first"), named(arguments, "second")
    check_same(one, two)
    print(f"identical: both have the sha256 {bundle_digest(one)}")


def rebuild(arguments: Namespace) -> int:
    """Build again from a provenance."""
    from aotlm.repro.rebuild import rebuild

    return rebuild(named(arguments, "provenance"), arguments.model, _path(arguments.out))


def sign(arguments: Namespace) -> None:
    """Sign a bundle."""
    from aotlm.bundle.signing import sign

    sign(named(arguments, "bundle"), _path(arguments.key), arguments.sigstore)
    _say(f"signed {arguments.bundle}")


def verify(arguments: Namespace) -> None:
    """Check digests and a signature, and say which of both was done."""
    from aotlm.bundle.signing import verify

    bundle, key = named(arguments, "bundle"), _path(arguments.key)
    print(verify(bundle, key, arguments.identity, arguments.identity_provider))


def toolchain(arguments: Namespace) -> None:
    """Make the toolchain ready."""
    from aotlm.toolchain.engine import read_settings
    from aotlm.toolchain.prepare import prepare_toolchain

    settings = read_settings(arguments.config(), arguments.engine, arguments.base_image)
    prepare_toolchain(settings, _path(arguments.cache))


def image(arguments: Namespace) -> None:
    """Make an image of a bundle."""
    from aotlm.toolchain.engine import read_settings
    from aotlm.toolchain.prepare import prepare_image

    settings = read_settings(arguments.config(), None, arguments.base_image)
    prepare_image(named(arguments, "bundle"), arguments.tag, settings)


def named(arguments: Namespace, flag: str) -> Path:
    """Return the path that a flag must give.

    Raises:
        UsageError: it was not given.
    """
    path = getattr(arguments, flag)
    if not path:
        raise UsageError(f"no {flag} was named; give one with --{flag}=PATH")
    return Path(path)


def _folder(arguments: Namespace) -> Path:
    return model_folder(arguments.dir, arguments.model, arguments.dtype)


def _path(word: str | None) -> Path | None:
    return Path(word) if word else None


def _say(line: str) -> None:
    """Print what a stage did, which can go unsaid."""
    if not is_quiet():
        print(line)
