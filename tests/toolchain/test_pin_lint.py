"""The lint of versions finds each kind of stray one."""

import shutil
from pathlib import Path

import pytest

from aotlm.toolchain.images import read_sources
from aotlm.toolchain.pin_lint import version_problems
from aotlm.toolchain.pins import DOCKER_DIR, PEERS_LOCK, read_pins

ROOT = DOCKER_DIR.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The parts of the project that hold versions."""
    root = tmp_path / "project"
    shutil.copytree(DOCKER_DIR, root / "docker")
    for path in (*read_sources().files, PEERS_LOCK.path):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, root / path)
    return root


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_this_project_is_clean() -> None:
    assert version_problems() == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("runtime.Dockerfile", "FROM debian:bookworm\n", "FROM debian:bookworm is not pinned"),
        ("runtime.Dockerfile", "from --platform=x debian AS d\n", "FROM debian is not pinned"),
        ("runtime.Dockerfile", "RUN pip install numpy==2.0\n", "names the version"),
        ("requirements.lock", "left-pad==1.0\n", "left-pad==1.0 in requirements.lock has no hash"),
        ("demo.lock", "left-pad==1.0\n", "left-pad in demo.lock has no hash"),
        ("../tasks.py", 'BASE = "debian@sha256:' + 64 * "0" + '"\n', "names the version"),
    ],
)
def test_a_stray_version_is_a_problem(project: Path, name: str, text: str, problem: str) -> None:
    assert version_problems(project) == []
    _append(project / "docker" / name, text)
    (found,) = version_problems(project)
    assert problem in found


def test_a_stage_and_a_digest_are_pinned(project: Path) -> None:
    digest = read_pins().base_image
    _append(project / "docker" / "runtime.Dockerfile", "FROM ${BASE_IMAGE} AS one\nFROM one\n")
    assert version_problems(project) == []
    pins = project / "docker" / "pins.toml"
    pins.write_text(pins.read_text().replace(digest, digest.split("@")[0]))
    (found,) = version_problems(project)
    assert found.startswith("the base image ")


def test_what_goes_into_the_image_changes_its_tag(project: Path) -> None:
    before = read_sources(project)
    assert before == read_sources(project)
    digests = {before.digest}
    names = ("docker/pins.toml", "docker/requirements.lock", "docker/toolchain.Dockerfile")
    for name in (
        *names,
        "src/aotlm/driver/compiler.py",
        "runtime/aotlm_runtime/cli/main.py",
        "tasks.py",
    ):
        _append(project / name, "# changed\n")
        digests.add(read_sources(project).digest)
    assert len(digests) == 7
