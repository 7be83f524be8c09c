"""Decompresses an archive into a file without a name, and no further than its manifest says."""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aotlm_runtime.bundle.archive import MAX_TAIL_BYTES, find_member, member_bytes
from aotlm_runtime.bundle.manifest import read_manifest_at
from aotlm_runtime.bundle.names import MANIFEST
from aotlm_runtime.errors import ArchiveInvalidError
from aotlm_runtime.host import memory
from aotlm_runtime.host.cache import cache_folder
from aotlm_runtime.host.room import available_bytes

MAGIC = b"\x28\xb5\x2f\xfd"  # with which a Zstandard frame starts
_CHUNK_BYTES = 1 << 22
# Only libraries come before the manifest, as members are sorted; all of them are below this.
_MAX_BYTES_BEFORE_MANIFEST = 1 << 28
# The one file beside the pad that a manifest does not list.
MAX_SIGNATURE_BYTES = 1 << 20


_MAKE_ROOM = "make room there or set XDG_CACHE_HOME to another folder"


@dataclass(frozen=True)
class _Place:
    """A folder; where none can be written, memory."""

    folder: Path | None

    @property
    def name(self) -> str:
        return "memory" if self.folder is None else str(self.folder)

    def open(self) -> IO[bytes]:
        """Return a new file without a name."""
        if self.folder is None:
            return os.fdopen(os.memfd_create("bundle.tar"), "w+b")
        return tempfile.TemporaryFile(dir=self.folder)

    def free_bytes(self) -> int | None:
        if self.folder is None:
            return available_bytes()
        return shutil.disk_usage(self.folder).free


def decompress(fd: int, path: Path) -> int:
    """Return a file that holds the decompressed archive and has no name, so it cannot stay.

    `fd` is left open.

    Raises:
        ArchiveInvalidError: it is damaged, expands to more than its manifest lists, or there is no
            room for it.
        ManifestInvalidError: its manifest is not valid.
    """
    import zstandard

    place = _place()
    try:
        with place.open() as plain:
            _copy(fd, plain.fileno(), path, place)
            return os.dup(plain.fileno())
    except zstandard.ZstdError as error:
        raise ArchiveInvalidError(
            f"cannot decompress {path}: {error}; get the archive again"
        ) from error
    except OSError as error:
        raise ArchiveInvalidError(
            f"cannot decompress {path} into {place.name}: {error.strerror}; {_MAKE_ROOM}"
        ) from error


def _copy(fd: int, plain: int, path: Path, place: _Place) -> None:
    import zstandard

    written, limit, limits = 0, _MAX_BYTES_BEFORE_MANIFEST, None
    with (
        os.fdopen(os.dup(fd), "rb") as source,
        zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as stream,
    ):
        while chunk := stream.read(_CHUNK_BYTES):
            written += _write(plain, chunk)
            if limits is None and (limits := _limits(plain, path)):
                listed, limit = limits
                _check_room(listed - written, path, place)
            if written > limit:
                said = "its manifest allows" if limits else "can come before a manifest"
                raise ArchiveInvalidError(
                    f"{path} expands to more than the {limit:,} bytes that {said}; "
                    "get the archive again"
                )


def _write(plain: int, chunk: bytes) -> int:
    with memoryview(chunk) as left:
        done = 0
        while done < len(left):
            done += os.write(plain, left[done:])
    return done


def _limits(plain: int, path: Path) -> tuple[int, int] | None:
    """Return the bytes that the manifest lists, and the most that an archive with it can have.

    None until the manifest was decompressed.
    """
    found = find_member(plain, MANIFEST, str(path))
    if found is None:
        return None
    manifest = read_manifest_at(plain, found.offset, found.size_bytes, f"{path}/{MANIFEST}")
    listed = sum(member_bytes(file.size_bytes) for file in manifest.files)
    unlisted = (found.size_bytes, MAX_SIGNATURE_BYTES, memory.PAGE)
    return listed, listed + sum(map(member_bytes, unlisted)) + MAX_TAIL_BYTES


def _check_room(size_bytes: int, path: Path, place: _Place) -> None:
    free = place.free_bytes()
    if free is not None and size_bytes > free:
        raise ArchiveInvalidError(
            f"cannot decompress {path} into {place.name}: {size_bytes:,} bytes are to come, but "
            f"{free:,} are free; {_MAKE_ROOM}"
        )


def _place() -> _Place:
    """Return a folder on a disk: /tmp is often memory, and the weights may not fit there."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return _Place(folder)
    with suppress(OSError):
        return _Place(Path(tempfile.gettempdir()))
    return _Place(None)
