"""The pinned versions: docker/pins.toml and the lock files that are written from it."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotlm.errors import AotlmError

ROOT = Path(__file__).resolve().parents[3]
DOCKER_DIR = ROOT / "docker"
PINS = "docker/pins.toml"
LOCK_NAME = "requirements.lock"
_VIA = re.compile(r"^    #(?: via)? +([A-Za-z0-9][A-Za-z0-9_.-]*)$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PINNED_IMAGE = re.compile(r"\S+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Pins:
    """What pins.toml says: Python (major.minor), the base image, and each named wheel's version."""

    python: str
    base_image: str
    wheels: dict[str, str]  # all of them
    test_wheels: frozenset[str] = frozenset()  # names of those that no image holds
    peers: dict[str, str] = field(default_factory=dict)  # of another environment, for `inv bench`

    def for_image(self) -> "Pins":
        """Return the pins without what only the tests need."""
        kept = {name: v for name, v in self.wheels.items() if name not in self.test_wheels}
        return replace(self, wheels=kept, test_wheels=frozenset())


@dataclass(frozen=True)
class LockFile:
    """A lock: its path in the checkout, and which of the pins it is written from."""

    path: str
    chosen: Callable[[Pins], dict[str, str]]

    @property
    def name(self) -> str:
        """The file's name, as messages say it."""
        return Path(self.path).name


PEERS_LOCK = LockFile("bench/peers.lock", lambda pins: pins.peers)
LOCKS = (LockFile(f"docker/{LOCK_NAME}", lambda pins: pins.wheels), PEERS_LOCK)


@dataclass(frozen=True)
class Locked:
    """An entry of the lock: its text as it stands there, and the packages that want it."""

    name: str
    version: str
    text: str
    hashes: frozenset[str]
    wanted_by: frozenset[str]


def read_pins(path: Path = DOCKER_DIR / "pins.toml") -> Pins:
    """Read pins.toml.

    Raises:
        AotlmError: the file is missing or has not the expected tables.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        wheels, test_wheels = dict(data["wheels"]), dict(data["test-wheels"])
        return Pins(
            data["python"]["version"],
            data["base"]["image"],
            wheels | test_wheels,
            frozenset(test_wheels),
            dict(data["peers"]),
        )
    except FileNotFoundError:
        raise AotlmError(f"{path} is missing; run from a checkout of the repository") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise AotlmError(f"{path} is broken ({error}); restore it from the repository") from None


def read_lock(path: Path = DOCKER_DIR / LOCK_NAME) -> dict[str, Locked]:
    """Return the lock's entries by name.

    Raises:
        AotlmError: the file is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise AotlmError(f"{path} is missing; restore it from the repository") from None
    parts = re.split(r"^(?=[A-Za-z0-9#])", text, flags=re.MULTILINE)
    entries = [_entry(part) for part in parts if part[:1].isalnum()]
    return {entry.name: entry for entry in entries}


def with_dependencies(
    lock: Mapping[str, Locked], names: Iterable[str], without: Iterable[str] = ()
) -> list[Locked]:
    """Return the entries of `names` and of all that they depend on, sorted by name.

    `without` are left out, and what only they depend on.

    Raises:
        AotlmError: the lock lacks one of `names`.
    """
    found = set(names)
    absent = sorted(found - set(lock))
    if absent:
        raise AotlmError(f"{LOCK_NAME} lacks {', '.join(absent)}; run inv lock")
    while more := {e.name for e in lock.values() if e.wanted_by & found} - found - set(without):
        found |= more
    return [lock[name] for name in sorted(found)]


def lock_problems(root: Path = ROOT) -> list[str]:
    """Return a sentence for each disagreement of pins.toml and the locks."""
    pins = read_pins(root / PINS)
    problems = [problem for lock in LOCKS for problem in _lock_problems(root, lock, pins)]
    if not is_pinned_image(pins.base_image):
        problems.append(f"the base image {pins.base_image} in pins.toml has no digest")
    return problems


def _lock_problems(root: Path, file: LockFile, pins: Pins) -> Iterator[str]:
    lock = read_lock(root / file.path)
    for name, version in sorted(file.chosen(pins).items()):
        if name not in lock or lock[name].version != version:
            found = lock[name].version if name in lock else "absent"
            yield f"{name} is {version} in pins.toml but {found} in {file.name}"
    for line in (root / file.path).read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            yield f"{line!r} in {file.name} names a package index; hashes are enough"
    for entry in lock.values():
        if not entry.hashes:
            yield f"{entry.text.split()[0]} in {file.name} has no hash"


def normal(name: str) -> str:
    """Return a package's name in the one spelling that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_pinned_image(name: str) -> bool:
    """Say whether an image's name ends with the digest of its content."""
    return _PINNED_IMAGE.fullmatch(name) is not None


def _entry(text: str) -> Locked:
    name, _, version = text.split()[0].partition("==")
    return Locked(
        normal(name),
        version,
        text,
        frozenset(_HASH.findall(text)),
        frozenset(normal(parent) for parent in _VIA.findall(text)),
    )
