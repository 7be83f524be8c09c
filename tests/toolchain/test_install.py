"""Both packages as wheels, built offline: what is in them, and what a build leaves behind."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import aotlm
import aotlm_runtime

ROOT = Path(__file__).parents[2]
PACKAGES = {"aotlm": ("", "src/"), "aotlm_runtime": ("runtime", "")}

PAGE = "from importlib.resources import files; print(files('aotlm_runtime.server') / 'page.html')"


def _git(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ("git", "-C", str(folder), *words), check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the present sources, and in it what another backend once left."""
    root = tmp_path_factory.mktemp("checkout")
    listed = _git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    for name in (name for name in listed if (ROOT / name).exists()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name, follow_symlinks=False)
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    for folder in ("build/lib/aotlm", "runtime/build/lib/aotlm_runtime"):
        (root / folder).mkdir(parents=True)
        (root / folder / "gone.py").write_text("")
    return root


def _pip(*words: str) -> None:
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, *offline]
    # as for a user: pip, and what it starts, find setuptools in the environment alone
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def wheel(checkout: Path, package: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    _pip("wheel", str(checkout / PACKAGES[package][0]), f"--wheel-dir={place}")
    (wheel,) = place.iterdir()
    return wheel


def test_a_build_leaves_nothing_among_the_sources(checkout: Path, wheel: Path) -> None:
    status = _git(checkout, "status", "--porcelain", "--ignored")
    assert [line for line in status if line[:2] != "A "] == ["!! build/", "!! runtime/build/"]


def test_a_wheel_holds_the_files_of_the_tree_and_no_others(
    checkout: Path, package: str, wheel: Path
) -> None:
    folder, source = PACKAGES[package]
    tree = _git(checkout / folder, "ls-files", f"{source}{package}")
    names = zipfile.ZipFile(wheel).namelist()
    packed = [name for name in names if ".dist-info/" not in name]
    assert sorted(packed) == sorted(name.removeprefix(source) for name in tree)


def test_a_wheel_says_its_version_and_licence(package: str, wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    version = {"aotlm": aotlm, "aotlm_runtime": aotlm_runtime}[package].__version__
    lines = archive.read(f"{package}-{version}.dist-info/METADATA").decode().splitlines()
    assert {f"Version: {version}", "License-Expression: Apache-2.0"} <= set(lines)
    text = archive.read(f"{package}-{version}.dist-info/licenses/LICENSE")
    assert text == (ROOT / "LICENSE").read_bytes()


def test_an_installed_runtime_runs_from_its_own_files(checkout: Path, tmp_path: Path) -> None:
    _pip("install", str(checkout / "runtime"), f"--target={tmp_path}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run(str(tmp_path / "bin" / "aotlm-run"), "--version")
    assert said == f"aotlm-run {aotlm_runtime.__version__}\n"
    assert Path(run(sys.executable, "-c", PAGE).strip()) == (
        tmp_path / "aotlm_runtime" / "server" / "page.html"
    )
