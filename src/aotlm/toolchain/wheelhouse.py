"""The wheelhouse: one folder with the wheels of the lock, for the host and for the images."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aotlm.errors import AotlmError
from aotlm.support.progress import Progress, silent
from aotlm.toolchain.pins import DOCKER_DIR, LOCK_NAME, Locked
from aotlm_runtime.host.cache import cache_folder

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def wheelhouse() -> Path:
    """Return the folder, in the user's cache; ./bootstrap names the same one."""
    return cache_folder("wheelhouse")


def fetch_wheels(
    entries: Sequence[Locked], house: Path, *, progress: Progress = silent
) -> list[Path]:
    """Return a wheel in `house` for each entry; pip fetches those that are not there.

    A file counts only when its sha256 is one of the entry's hashes.

    Raises:
        AotlmError: the package index cannot be reached, lacks a wheel, or serves other bytes.
    """
    found = _wheels(entries, house)
    missing = [entry for entry in entries if entry.name not in found]
    if missing:
        progress(0, len(missing), f"fetching {len(missing)} wheels into {house}")
        try:
            _download(missing, house)
        except OSError as error:
            raise AotlmError(
                f"{house} cannot be written ({error.strerror}); make room there, or name another "
                "cache with XDG_CACHE_HOME"
            ) from error
        found |= _wheels(missing, house)
        progress(len(missing), len(missing), "wheels fetched")
    for entry in entries:
        if entry.name not in found:
            raise AotlmError(
                f"no wheel of {entry.name} {entry.version} in {house} has a hash of "
                f"{LOCK_NAME}; remove that folder and run this again"
            )
    return [found[entry.name] for entry in entries]


def install_on_host(*, progress: Progress = silent) -> None:
    """Install every wheel of the lock in this Python's environment, from the wheelhouse alone.

    Raises:
        AotlmError: this is no virtual environment, a wheel cannot be fetched or installed.
    """
    from aotlm.toolchain.pins import read_lock

    if sys.prefix == sys.base_prefix:
        raise AotlmError(
            f"{sys.executable} belongs to the system; run ./bootstrap, which makes an environment "
            "for the wheels"
        )
    house = wheelhouse()
    fetch_wheels(list(read_lock().values()), house, progress=progress)
    words = ["install", "--quiet", "--no-index", "--no-deps", "--require-hashes"]
    _run_pip([*words, f"--find-links={house}", "-r", str(DOCKER_DIR / LOCK_NAME)])


def _wheels(entries: Sequence[Locked], house: Path) -> dict[str, Path]:
    wanted = {digest: entry.name for entry in entries for digest in entry.hashes}
    names = {entry.name.replace("-", "_") for entry in entries}
    found = {}
    for path in sorted(house.glob("*.whl")):
        # PEP 427: a wheel's name starts with the package's, its dashes as underscores
        if path.name.split("-")[0].replace(".", "_").lower() in names:
            name = wanted.get(_sha256(path))
            if name:
                found[name] = path
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(entries: Sequence[Locked], house: Path) -> None:
    house.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=house) as name:
        wanted = Path(name) / "requirements.txt"
        wanted.write_text("".join(entry.text for entry in entries), encoding="utf-8")
        words = ["download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:"]
        _run_pip([*words, f"--dest={name}", "-r", str(wanted)])
        for wheel in sorted(Path(name).glob("*.whl")):
            shutil.move(wheel, house / wheel.name)


def _run_pip(words: Sequence[str]) -> None:
    done = subprocess.run((*_PIP, *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AotlmError(_why(done.stderr))


def _why(output: str) -> str:
    """Turn what pip said into one sentence with the next step."""
    if "DO NOT MATCH THE HASHES" in output:
        blamed = [line for line in output.splitlines() if " from " in line and "://" in line]
        name = blamed[0].split()[0].rstrip(":") if blamed else "a wheel"
        return (
            f"the package index serves other bytes for {name} than {LOCK_NAME} has the hash of; "
            "do not install them: use another index, or run inv lock when the change is meant"
        )
    if "No space left on device" in output:
        return f"the disk of {wheelhouse()} is full; make room and run this again"
    if "No matching distribution found for torch" in output:
        return (
            "pip found no matching torch; set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index "
            "and run this again"
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "it gave no reason"
    return f"pip could not fetch the pinned wheels ({reason}); check the network and run this again"
