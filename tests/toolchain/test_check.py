"""The check of the installed toolchain."""

import dataclasses
from pathlib import Path

import pytest

from aotlm.codegen import tools
from aotlm.errors import AotlmError
from aotlm.support import build_record
from aotlm.support.build_record import RECORDED, toolchain_versions
from aotlm.toolchain.check import check_toolchain
from aotlm.toolchain.pins import read_pins


def test_this_environment_is_the_pinned_one() -> None:
    versions = check_toolchain()
    pins = read_pins()
    assert versions == {"python": pins.python} | {name: pins.wheels[name] for name in RECORDED}
    assert versions == toolchain_versions()


def test_everything_wrong_or_missing_is_in_one_sentence() -> None:
    pins = read_pins()
    wheels = pins.wheels | {"ziglang": "0.1", "no-such-wheel": "2.0"}
    changed = dataclasses.replace(pins, python="3.10", wheels=wheels)
    with pytest.raises(AotlmError) as caught:
        check_toolchain(changed)
    message = str(caught.value)
    assert "Python is 3.11 (pinned: 3.10)" in message
    assert "no-such-wheel is missing (pinned: 2.0)" in message
    assert f"ziglang is {pins.wheels['ziglang']} (pinned: 0.1)" in message
    assert message.endswith("run ./bootstrap again")


def test_a_tool_that_does_not_start_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "llc"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    broken.chmod(0o755)
    real = tools.tool_path
    monkeypatch.setattr(tools, "tool_path", lambda name: broken if name == "llc" else real(name))
    with pytest.raises(AotlmError, match=r"llc --version' does not run here \(no such library\)"):
        check_toolchain()


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_record, "RECORDED", ("no-such-wheel",))
    with pytest.raises(AotlmError, match=r"no-such-wheel is missing; run \./bootstrap"):
        toolchain_versions()
