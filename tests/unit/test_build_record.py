"""Where a build comes from: a checkout, what it is told, or nothing that is known."""

import shutil
import subprocess
from pathlib import Path

import pytest

import aotlm
import aotlm_runtime
from aotlm.errors import AotlmError
from aotlm.support import build_record
from aotlm.support.build_record import Origin, origin, source_digest
from aotlm_runtime.bundle.manifest import encode


def _git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")
    command = ("git", "-C", str(folder), *names, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "a checkout"
    for name in ("src/a.py", "docker/pins.toml", "docker/requirements.lock", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "all")
    monkeypatch.setattr(build_record, "ROOT", root)
    monkeypatch.delenv("AOTLM_ORIGIN", raising=False)
    return root


def test_a_checkout_has_its_commit_and_is_dirty_where_a_bundle_could_change(checkout: Path) -> None:
    clean = origin()
    assert (clean.commit, clean.dirty) == (_git(checkout, "rev-parse", "HEAD"), False)
    (checkout / "README.md").write_text("no part of a bundle")
    assert origin() == clean
    (checkout / "src" / "b.py").write_text("a new file")
    assert origin().dirty
    (checkout / "docker" / "pins.toml").write_text("other pins")
    assert origin().pins_sha256 != clean.pins_sha256


def test_outside_of_a_checkout_the_commit_is_unknown(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a folder of somebody else's checkout is not ours
    monkeypatch.setattr(build_record, "ROOT", checkout / "src")
    assert origin() == Origin(commit="unknown", dirty=None, pins_sha256="unknown")
    monkeypatch.setattr(build_record, "ROOT", checkout)
    shutil.rmtree(checkout / ".git")
    assert (origin().commit, origin().dirty) == ("unknown", None)


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert origin().commit == "unknown"


def test_a_container_is_told_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Origin(commit="a" * 40, dirty=True, pins_sha256="b" * 64)
    monkeypatch.setenv("AOTLM_ORIGIN", encode(told).decode())
    assert origin() == told
    monkeypatch.setenv("AOTLM_ORIGIN", "main")
    with pytest.raises(AotlmError, match="AOTLM_ORIGIN is 'main', which describes no checkout"):
        origin()


def test_an_edit_of_any_file_of_either_package_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (aotlm, aotlm_runtime):
        copy = tmp_path / package.__name__
        shutil.copytree(Path(str(package.__file__)).parent, copy)
        monkeypatch.setattr(package, "__file__", str(copy / "__init__.py"))
    paths = sorted([*tmp_path.rglob("*.py"), *tmp_path.rglob("*.c")])
    assert {path.parent.name for path in paths} >= {"aotlm", "aotlm_runtime", "kernels", "server"}
    digests = {source_digest()}
    for path in paths:
        path.write_bytes(path.read_bytes() + b"\n")
        digests.add(source_digest())
    assert len(digests) == 1 + len(paths)
