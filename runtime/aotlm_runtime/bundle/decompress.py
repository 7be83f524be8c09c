"""Decompresses an archive into a file without a name, and no further than its manifest says."""

import os
import shutil
import tempfile
from pathlib import Path

from aotlm_runtime.bundle.archive import MAX_TAIL_BYTES, find_member, member_bytes
from aotlm_runtime.bundle.manifest import read_manifest_at
from aotlm_runtime.bundle.names import MANIFEST
from aotlm_runtime.errors import ArchiveInvalidError
from aotlm_runtime.host import memory
from aotlm_runtime.host.cache import cache_folder

MAGIC = b"\x28\xb5\x2f\xfd"  # with which a Zstandard frame starts
_CHUNK_BYTES = 1 << 22
# Only libraries come before the manifest, as members are sorted; all of them are below this.
_MAX_BYTES_BEFORE_MANIFEST = 1 << 28
# The one file beside the pad that a manifest does not list.
_MAX_SIGNATURE_BYTES = 1 << 20


def decompress(fd: int, path: Path) -> int:
    """Return a file that holds the decompressed archive and has no name, so it cannot stay.

    `fd` is left open.

    Raises:
        ArchiveInvalidError: it is damaged, expands to more than its manifest lists, or there is no
            room for it.
        ManifestInvalidError: its manifest is not valid.
    """
    import zstandard

    folder = _cache_folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as plain:
            _copy(fd, plain.fileno(), path, folder)
            return os.dup(plain.fileno())
    except zstandard.ZstdError as error:
        raise ArchiveInvalidError(
            f"cannot decompress {path}: {error}; get the archive again"
        ) from error
    except OSError as error:
        raise ArchiveInvalidError(
            f"cannot decompress {path} into {folder}: {error.strerror}; "
            "make room there or set XDG_CACHE_HOME to another folder"
        ) from error


def _copy(fd: int, plain: int, path: Path, folder: Path) -> None:
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
                _check_disk(listed - written, path, folder)
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
    unlisted = (found.size_bytes, _MAX_SIGNATURE_BYTES, memory.PAGE)
    return listed, listed + sum(map(member_bytes, unlisted)) + MAX_TAIL_BYTES


def _check_disk(size_bytes: int, path: Path, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise ArchiveInvalidError(
            f"cannot decompress {path} into {folder}: {size_bytes:,} bytes are to come, but "
            f"{free:,} are free; make room there or set XDG_CACHE_HOME to another folder"
        )


def _cache_folder() -> Path:
    """Return a folder on a disk: /tmp is often memory, and the weights may not fit there."""
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return Path(tempfile.gettempdir())
    return folder
