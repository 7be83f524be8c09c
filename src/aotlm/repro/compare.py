"""Two bundles, byte by byte: the first file that differs, and where in it."""

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from aotlm.bundle.provenance import NAME as PROVENANCE
from aotlm.errors import AotlmError
from aotlm_runtime.bundle.names import MANIFEST

_CHUNK_BYTES = 1 << 22
_PACKED = (".zst",)
_LAST = (PROVENANCE, MANIFEST)


@dataclass(frozen=True)
class Part:
    """The bytes of one file of a bundle: `size_bytes` from `offset` in the file `path`."""

    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Difference:
    """A file that is not the same in both bundles; None where a bundle has not got it.

    `offset` is that of the first different byte, which is the shorter one's end where it is a
    prefix of the other.
    """

    name: str
    offset: int
    first: Part | None
    second: Part | None

    def __str__(self) -> str:
        if self.first is None or self.second is None:
            return f"{self.name} is only in the {'first' if self.first else 'second'} bundle"
        values = (_byte(part, self.offset) for part in (self.first, self.second))
        return f"{self.name} differs first at byte {self.offset} ({' and '.join(values)})"


def compare_bundles(first: Path, second: Path) -> Difference | None:
    """Return the first difference of two folders or two archives, in the order of names.

    The files that repeat the others' digests come last: they differ whenever another does. Of
    archives the members are compared, then all bytes; a packed one is compared as it is.

    Raises:
        AotlmError: one of them cannot be read, or only one is a folder.
    """
    for bundle in (first, second):
        if not bundle.exists():
            raise AotlmError(f"no bundle at {bundle}; give a bundle's folder or archive")
    if first.is_dir() != second.is_dir():
        raise AotlmError(
            f"{first} and {second} cannot be compared: one is a folder and one is not; name two "
            "folders or two archives"
        )
    one, two = _parts(first), _parts(second)
    for name in sorted(one.keys() | two.keys(), key=_rank):
        difference = _compare(name, one.get(name), two.get(name))
        if difference:
            return difference
    return None if first.is_dir() else _compare(first.name, _whole(first), _whole(second))


def bundle_digest(bundle: Path) -> str:
    """Return a sha256: of an archive its bytes', of a folder that of its names and digests."""
    if not bundle.is_dir():
        return _digest(bundle)
    total = hashlib.sha256()
    for name, part in sorted(_parts(bundle).items()):
        total.update(f"{_digest(part.path)}  {name}\n".encode())
    return total.hexdigest()


def _rank(name: str) -> tuple[int, str]:
    return (_LAST.index(name) + 1 if name in _LAST else 0, name)


def _parts(bundle: Path) -> dict[str, Part]:
    """The files of a bundle by their names in it; of a packed archive, none."""
    try:
        if bundle.is_dir():
            paths = (path for path in bundle.rglob("*") if path.is_file())
            return {path.relative_to(bundle).as_posix(): _whole(path) for path in paths}
        if bundle.suffix in _PACKED:
            return {}
        with tarfile.open(bundle, "r:") as tar:
            return {
                member.name: Part(bundle, member.offset_data, member.size)
                for member in tar.getmembers()
            }
    except OSError as error:
        raise AotlmError(
            f"cannot read {bundle}: {error.strerror}; give a bundle's folder or archive"
        ) from None
    except tarfile.TarError as error:
        raise AotlmError(
            f"{bundle} is no archive of a bundle ({error}); give a bundle's folder or archive"
        ) from None


def _whole(path: Path) -> Part:
    return Part(path, 0, path.stat().st_size)


def _compare(name: str, first: Part | None, second: Part | None) -> Difference | None:
    if first is None or second is None:
        return Difference(name, 0, first, second)
    offset = _first_offset(first, second)
    return None if offset is None else Difference(name, offset, first, second)


def _first_offset(first: Part, second: Part) -> int | None:
    shorter = min(first.size_bytes, second.size_bytes)
    with first.path.open("rb") as one, second.path.open("rb") as two:
        one.seek(first.offset)
        two.seek(second.offset)
        for begin in range(0, shorter, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, shorter - begin)
            chunks = one.read(size), two.read(size)
            if chunks[0] != chunks[1]:
                return begin + next(i for i in range(size) if chunks[0][i] != chunks[1][i])
    return None if first.size_bytes == second.size_bytes else shorter


def _byte(part: Part, offset: int) -> str:
    """The byte there, for the message."""
    if offset >= part.size_bytes:
        return f"end at {part.size_bytes}"
    with part.path.open("rb") as file:
        file.seek(part.offset + offset)
        return f"0x{file.read(1).hex()}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
