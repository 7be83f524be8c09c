"""A real Docker engine and its toolchain image, or a reason why there is none."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.images import Image

from aotlm.errors import AotlmError
from aotlm.support.progress import shown
from aotlm.toolchain.engine import connect, read_settings
from aotlm.toolchain.images import ensure_toolchain

ROOT = Path(__file__).parents[2]
SMALL_BYTES = 1 << 20


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    try:
        return connect()
    except AotlmError as error:
        if os.environ.get("AOTLM_DOCKER_TESTS") == "required":
            pytest.fail(f"these tests are required here, but {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def toolchain(engine: docker.DockerClient) -> Image:
    with shown("toolchain") as progress:
        return ensure_toolchain(engine, read_settings({}).base_image, progress)[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of SMALL_BYTES."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ("mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(disk))
    subprocess.run(words, check=True)
    yield disk
    subprocess.run(("umount", str(disk)), check=True)


def inv(
    *words: str, cwd: Path = ROOT, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a task of this checkout from another folder, as a user would."""
    command = [sys.executable, "-m", "invoke", f"--search-root={ROOT}", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, input=text, env={**os.environ, **env}
    )
