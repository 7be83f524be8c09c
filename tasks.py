"""The commands of the project: `inv --list` names them, `inv -h TASK` explains one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from invoke import Context

from aotlm.driver.command import command, flag_words, toolchain_settings
from aotlm.driver.folders import DEFAULT_MODEL, default_folder
from aotlm.errors import UsageError
from aotlm.support.progress import shown
from aotlm_runtime.cli.flags import RUN

# Tests of one file share what takes long to build, so a file stays with one process.
WORKERS = ("-n", "2", "--dist", "loadfile")


@command("toolchain")
def toolchain(
    c: Context,
    engine: str | None = None,
    base_image: str | None = None,
    cache: str | None = None,
) -> None:
    """Make the pinned toolchain ready: image, or wheels here."""
    from aotlm.toolchain.prepare import prepare_toolchain

    settings = toolchain_settings(c, engine, base_image)
    prepare_toolchain(settings, Path(cache) if cache else None)


@command("image")
def image(
    c: Context, bundle: str | None = None, tag: str | None = None, base_image: str | None = None
) -> None:
    """Make an image that runs a bundle, without torch and compiler."""
    from aotlm.toolchain.prepare import prepare_image

    prepare_image(_named("bundle", bundle), tag, toolchain_settings(c, None, base_image))


@command("import", is_stage=True)
def import_(
    c: Context,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    dtype: str = "f16",
    out: str | None = None,
    force: bool = False,
    accept_unused: bool = False,
    template: str | None = None,
    dump_after: str | None = None,
    list_passes: bool = False,
) -> None:
    """Turn a model into MLIR and a weight file, in DIR/import."""
    from aotlm.driver import compiler

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
            accept_unused=accept_unused,
            template=template,
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


@command("repro")
def repro(
    c: Context,
    model: str = "demo",
    revision: str | None = None,
    dtype: str = "f16",
    target: str = "x86-64-v3",
    out: str | None = None,
) -> None:
    """Build a model twice under other conditions and compare them."""
    from aotlm.repro.repro import Wanted, repro

    wanted = Wanted(model, revision, dtype, target)
    folder = Path(out) if out else default_folder(f"repro-{Path(model).name}", dtype)
    print(f"identical: both archives have the sha256 {repro(wanted, folder.resolve())}")


@command("compare")
def compare(c: Context, first: str | None = None, second: str | None = None) -> None:
    """Compare two bundles, as folders or archives, byte by byte."""
    from aotlm.repro.compare import bundle_digest
    from aotlm.repro.same import check_same

    one, two = _named("first", first), _named("second", second)
    check_same(one, two)
    print(f"identical: both have the sha256 {bundle_digest(one)}")


@command("rebuild")
def rebuild(
    c: Context, provenance: str | None = None, model: str | None = None, out: str | None = None
) -> int:
    """Build again what a provenance.json says, and compare."""
    from aotlm.repro.rebuild import rebuild

    return rebuild(_named("provenance", provenance), model, Path(out) if out else None)


@command("sign")
def sign(
    c: Context, bundle: str | None = None, key: str | None = None, sigstore: bool = False
) -> None:
    """Sign a bundle with a key or with a workflow's identity."""
    from aotlm.bundle.signing import sign

    sign(_named("bundle", bundle), Path(key) if key else None, sigstore)
    print(f"signed {bundle}")


@command("verify")
def verify(
    c: Context,
    bundle: str | None = None,
    key: str | None = None,
    identity: str | None = None,
    identity_provider: str = "https://token.actions.githubusercontent.com",
) -> None:
    """Check a bundle's digests and, given a key, its signature."""
    from aotlm.bundle.signing import verify

    print(verify(_named("bundle", bundle), Path(key) if key else None, identity, identity_provider))


@command("run", flags=RUN)
def run(c: Context, bundle: str | None = None, **flags: Any) -> int:
    """Answer one prompt with a bundle, or open the chat."""
    path = _named("bundle", bundle)
    from aotlm_runtime.cli.main import main

    return main(["run", *flag_words(RUN, flags), str(path)])


@command("profile")
def profile(c: Context, bundle: str | None = None, threads: str | None = None) -> None:
    """Show where the time of a decode step and a prefill goes."""
    from bench.counts import Counts
    from bench.profile import profile

    print(profile(_named("bundle", bundle), Counts(threads=threads).read("threads")))


@command("check")
def check(c: Context, dir: str | None = None, model: str | None = None) -> int:
    """Compare each stage of the model in DIR with PyTorch."""
    from aotlm.check import check

    return check(_folder(dir), model=model)


@command("demo", flags=RUN)
def demo(c: Context, dtype: str = "f16", **flags: Any) -> int:
    """Build the demo model where needed, and chat with it."""
    from aotlm.driver.demo import build_demo
    from aotlm_runtime.cli.main import main

    bundle = build_demo(dtype, default_folder("demo", dtype))
    return main(["run", *flag_words(RUN, flags), str(bundle)])


@command("bench")
def bench(
    c: Context,
    bundle: list[str],
    model: list[str],
    peers: str | None = None,
    build: bool = False,
    repeat: str | None = None,
    seconds: str | None = None,
    threads: str | None = None,
    context: str | None = None,
    json: str | None = None,
    out: str | None = None,
) -> None:
    """Measure bundles, beside the machine's limits and peers."""
    paths = [Path(path) for path in bundle] or [_named("bundle", None)]
    from aotlm_runtime.cli.console import note
    from bench.counts import Counts
    from bench.run import Request, bench

    counts = Counts(repeat, seconds, threads, context)
    print(bench(Request(paths, model, peers, counts, build), json, out, note))


@command("peers")
def peers(c: Context) -> None:
    """Make the environment of what inv bench --peers compares with."""
    from aotlm_runtime.cli.console import note
    from bench.environment import make_environment
    from bench.peers import PEERS

    make_environment(note)
    note(f"the peers are ready for inv bench --peers {','.join(PEERS)}")


@command("test")
def test(c: Context) -> int:
    """Run all tests."""
    return subprocess.call([sys.executable, "-m", "pytest", "-q", *WORKERS])


@command("lock")
def lock(c: Context) -> None:
    """Write both locks of packages from docker/pins.toml."""
    from aotlm.toolchain.lock import write_lock
    from aotlm.toolchain.pins import LOCKS

    for file in LOCKS:
        print(f"wrote {write_lock(file)}")


@command("lint")
def lint(c: Context) -> int:
    """Check style, types and pins of the whole tree."""
    from aotlm.toolchain.lint import lint

    return lint()


def _folder(dir: str | None) -> Path:
    """DIR, or the default model's folder."""
    return Path(dir) if dir else default_folder(DEFAULT_MODEL, "f16")


def _named(flag: str, path: str | None) -> Path:
    """The path that a flag must give."""
    if not path:
        raise UsageError(f"no {flag} was named; give --{flag}=PATH")
    return Path(path)
