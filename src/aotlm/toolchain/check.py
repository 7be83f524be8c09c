"""The check of the installed toolchain against the pins."""

from aotlm.codegen.tools import check_tools
from aotlm.errors import AotlmError
from aotlm.support.build_record import installed_version, python_version, toolchain_versions
from aotlm.toolchain.pins import Pins, read_pins


def check_toolchain(pins: Pins | None = None) -> dict[str, str]:
    """Compare what is installed with the pins, start every tool once, and return the versions.

    Raises:
        AotlmError: one sentence that names everything missing or different.
    """
    pins = pins or read_pins()
    found = {name: installed_version(name) for name in pins.wheels}
    wrong = [
        f"{name} is {found[name] or 'missing'} (pinned: {version})"
        for name, version in sorted(pins.wheels.items())
        if found[name] != version
    ]
    if python_version() != pins.python:
        wrong.insert(0, f"Python is {python_version()} (pinned: {pins.python})")
    if wrong:
        raise AotlmError(
            f"the toolchain is not the pinned one: {', '.join(wrong)}; run ./bootstrap again"
        )
    check_tools()
    return toolchain_versions()
