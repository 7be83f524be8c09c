"""The one-file form of a bundle: an uncompressed ustar archive whose weights can be mapped.

Members are sorted by path, with fixed owner, modes and times; the weights are last, and a member
of zeros before them makes their data start at a multiple of a page.
"""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import zstandard

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file

PAD_NAME = ".pad"
PAGE_BYTES = 4096
# ustar writes a size as eleven octal digits.
MAX_MEMBER_BYTES = 8**11 - 1
# Weights hardly compress, so a higher level costs time and gains nothing.
_ZSTD_LEVEL = 3


def write_archive(
    folder: Path, paths: Sequence[str], weights: str, archive: Path, compress: bool
) -> None:
    """Write the files `paths` of `folder` into `archive`, `weights` last and aligned.

    Raises:
        AotlmError: a file is too large for the format, or the archive cannot be written.
    """
    for path in paths:
        size = (folder / path).stat().st_size
        if size > MAX_MEMBER_BYTES:
            raise AotlmError(
                f"{path} has {size} bytes, but a ustar archive holds files of at most "
                f"{MAX_MEMBER_BYTES}; use the folder {folder} itself as the bundle"
            )
    with new_file(archive) as made, made.open("wb") as file:
        if not compress:
            _write_tar(folder, paths, weights, file)
            return
        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        with packer.stream_writer(file, closefd=False) as stream:
            _write_tar(folder, paths, weights, stream)


def _write_tar(folder: Path, paths: Sequence[str], weights: str, file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(set(paths) - {weights}):
            _add(tar, folder, path)
        pad = tarfile.TarInfo(PAD_NAME)
        # Two headers, the pad's and the weights' own, come before the weights' data.
        pad.size = -(tar.offset + 2 * tarfile.BLOCKSIZE) % PAGE_BYTES
        pad.mode = 0o644
        tar.addfile(pad, io.BytesIO(bytes(pad.size)))
        _add(tar, folder, weights)


def _add(tar: tarfile.TarFile, folder: Path, path: str) -> None:
    member = tarfile.TarInfo(path)
    member.size = (folder / path).stat().st_size
    member.mode = 0o755 if path.endswith(".so") else 0o644
    with (folder / path).open("rb") as data:
        tar.addfile(member, data)
