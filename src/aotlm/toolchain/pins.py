"""The pinned versions: docker/pins.toml and the lock file beside it."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import AotlmError

DOCKER_DIR = Path(__file__).resolve().parents[3] / "docker"
_LOCKED = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", re.MULTILINE)


@dataclass(frozen=True)
class Pins:
    """What pins.toml says: the Python version (major.minor) and each named wheel's version."""

    python: str
    wheels: dict[str, str]


def read_pins(path: Path = DOCKER_DIR / "pins.toml") -> Pins:
    """Read pins.toml.

    Raises:
        AotlmError: the file is missing or has not the expected tables.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return Pins(data["python"]["version"], dict(data["wheels"]))
    except FileNotFoundError:
        raise AotlmError(f"{path} is missing; run from a checkout of the repository") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise AotlmError(f"{path} is broken ({error}); restore it from the repository") from None


def lock_problems(folder: Path = DOCKER_DIR) -> list[str]:
    """Return a sentence for each disagreement of pins.toml and requirements.lock."""
    pins = read_pins(folder / "pins.toml").wheels
    lock = (folder / "requirements.lock").read_text(encoding="utf-8")
    locked = {normal(name): version for name, version in _LOCKED.findall(lock)}
    problems = [
        f"{name} is {version} in pins.toml but {locked.get(name, 'absent')} in requirements.lock"
        for name, version in sorted(pins.items())
        if locked.get(name) != version
    ]
    problems += [
        f"{line!r} in requirements.lock names a package index; hashes are enough"
        for line in lock.splitlines()
        if line.startswith("--")
    ]
    return problems + _unhashed(lock)


def normal(name: str) -> str:
    """Return a package's name in the one spelling that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _unhashed(lock: str) -> list[str]:
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return [
        f"{entry.split()[0]} in requirements.lock has no hash"
        for entry in entries
        if entry[:1].isalnum() and "--hash=sha256:" not in entry
    ]
