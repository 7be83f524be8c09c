"""The lint of versions: each is in pins.toml or, with its hash, in a lock, and nowhere else."""

import re
from collections.abc import Iterator
from pathlib import Path

from aotlm.toolchain.pins import DOCKER_DIR, is_pinned_image, lock_problems, read_lock

# Where versions could hide. The tests make up their own.
_PLACES = ("bench", "docker", "src", "runtime", "examples", ".github", ".ci")
_FILES = ("bootstrap", "tasks.py", "pyproject.toml")
_SUFFIXES = ("", ".py", ".sh", ".toml", ".yml", ".yaml", ".Dockerfile", ".txt", ".in", ".cfg")
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_VERSION = re.compile(r"[A-Za-z0-9\]_-]==\d[^\s\"']*|\S+@sha256:[0-9a-f]{64}")
_BASE = "${BASE_IMAGE}"  # the build argument, whose value comes from pins.toml


def version_problems(root: Path = DOCKER_DIR.parent) -> list[str]:
    """Return a sentence for each version that is unpinned, unhashed or in the wrong place."""
    docker = root / "docker"
    problems = lock_problems(root)
    for path in sorted(docker.glob("*.lock")):
        if path.name != "requirements.lock":
            problems += [
                f"{entry.name} in {path.name} has no hash"
                for entry in read_lock(path).values()
                if not entry.hashes
            ]
    for path in _texts(root):
        name = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if "Dockerfile" in path.name:
            problems += [f"{name}: {problem}" for problem in _unpinned_bases(lines)]
        if path != docker / "pins.toml":
            problems += [
                f"{name}:{number} names the version {found[0]}; keep it in docker/pins.toml"
                for number, line in enumerate(lines, start=1)
                for found in [_VERSION.search(line)]
                if found
            ]
    return problems


def _texts(root: Path) -> Iterator[Path]:
    found = [root / name for name in _FILES]
    for place in _PLACES:
        found += sorted((root / place).rglob("*"))
    for path in found:
        hidden = any(part.endswith(".egg-info") for part in path.parts)
        if path.is_file() and path.suffix in _SUFFIXES and not hidden:
            yield path


def _unpinned_bases(lines: list[str]) -> Iterator[str]:
    stages = set()
    for line in lines:
        if not (found := _FROM.match(line)):
            continue
        image, stage = found.groups()
        if image != _BASE and image not in stages and not is_pinned_image(image):
            yield f"FROM {image} is not pinned; use {_BASE} or a name with @sha256:"
        stages.add(stage)
