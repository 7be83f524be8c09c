"""`aotlm.build` on a tiny model: what it runs, and what it leaves alone."""

from pathlib import Path

import aotlm
from tests.unit.checkpoints import saved

TARGET = "x86-64-v3"


def test_a_build_runs_only_what_changed(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    saved(model)
    steps: list[str] = []

    def build(dtype: str = "f16", target: str = TARGET, *, force: bool = False) -> set[str]:
        steps.clear()
        bundle = aotlm.build(
            str(model), out, dtype=dtype, target=target, force=force,
            progress=lambda done, total, what: steps.append(what),
        )  # fmt: skip
        assert bundle == out / "bundle"
        return {
            stage
            for stage, sign in (
                ("import", "capture"),
                ("compile", "thread pool"),
                ("package", "weights.safetensors"),
            )
            if sign in steps
        }

    assert build() == {"import", "compile", "package"}
    assert build() == set()
    assert build(target="x86-64-v4") == {"compile", "package"}
    assert sorted(path.name for path in (out / "bundle" / "lib").iterdir()) == [TARGET, "x86-64-v4"]
    assert build(dtype="bf16") == {"import", "compile", "package"}
    assert [path.name for path in (out / "bundle" / "lib").iterdir()] == [TARGET]
    assert build(dtype="bf16", force=True) == {"import", "compile", "package"}
    (model / "model.safetensors").touch()
    assert build(dtype="bf16") == {"import"}  # the same bytes as before
    (out / "out.tar").unlink()
    assert build(dtype="bf16") == {"package"}
