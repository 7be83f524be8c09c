"""Reads the list of members of a bundle's archive, strictly.

A bundle's archive is plain ustar with regular files only. The headers are read by this module
alone, so no second reader can take a name, a link or a size in another way.
"""

import os
from dataclasses import dataclass

from aotlm_runtime.bundle.manifest import is_safe_path
from aotlm_runtime.errors import ArchiveInvalidError

_BLOCK = 512
# The end is two blocks of zeros; packers fill up to a record, which is 20 blocks by convention.
MAX_TAIL_BYTES = 64 * _BLOCK


@dataclass(frozen=True)
class Member:
    """A regular file in an archive; its bytes start at `offset`."""

    path: str
    offset: int
    size_bytes: int


def read_members(fd: int, name: str) -> dict[str, Member]:
    """Return the members of the archive open as `fd` by path; `name` is for errors.

    Raises:
        ArchiveInvalidError: anything but regular files with plain, distinct, relative paths.
    """
    end = os.fstat(fd).st_size
    members: dict[str, Member] = {}
    offset = 0
    while any(header := _read_block(fd, offset, name)):
        member = _parse(header, offset + _BLOCK, name)
        if member.path in members:
            raise _invalid(name, f"holds '{member.path}' twice")
        if member.offset + member.size_bytes > end:
            raise _invalid(name, f"ends inside '{member.path}'")
        members[member.path] = member
        offset += member_bytes(member.size_bytes)
    _check_tail(fd, offset, end, name)
    return members


def find_member(fd: int, path: str, name: str) -> Member | None:
    """Return a member of the beginning of an archive; None if not all of its bytes are there.

    Raises:
        ArchiveInvalidError: something before it is no regular file with a plain relative path.
    """
    end = os.fstat(fd).st_size
    offset = 0
    while offset + _BLOCK <= end and any(header := os.pread(fd, _BLOCK, offset)):
        member = _parse(header, offset + _BLOCK, name)
        if member.path == path:
            return member if member.offset + member.size_bytes <= end else None
        offset += member_bytes(member.size_bytes)
    return None


def member_bytes(size_bytes: int) -> int:
    """Return what a file of `size_bytes` takes in an archive, with its header."""
    return _BLOCK + -(-size_bytes // _BLOCK) * _BLOCK


def _read_block(fd: int, offset: int, name: str) -> bytes:
    header = os.pread(fd, _BLOCK, offset)
    if len(header) != _BLOCK:
        raise _invalid(name, f"is cut off after {offset} bytes")
    return header


def _check_tail(fd: int, offset: int, end: int, name: str) -> None:
    if end - offset < 2 * _BLOCK:
        raise _invalid(name, f"is cut off after {end} bytes")
    if end - offset > MAX_TAIL_BYTES or any(os.pread(fd, end - offset, offset)):
        raise _invalid(name, f"holds bytes behind its end at {offset}")


def _parse(header: bytes, data_offset: int, name: str) -> Member:
    """Read one header; POSIX.1-1988: name, mode, ids, size, mtime, checksum, type, ..., prefix."""
    unsigned_sum = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if _octal(header[148:156], name) != unsigned_sum or header[257:263] != b"ustar\0":
        raise _invalid(name, f"has no ustar header at byte {data_offset - _BLOCK}")
    path = "/".join(part for part in (_text(header[345:500]), _text(header[:100])) if part)
    if header[156:157] not in (b"0", b"\0"):
        raise _invalid(name, f"holds {path!r}, which is not a regular file")
    if not is_safe_path(path):
        raise _invalid(name, f"holds {path!r}, which is not a plain relative path")
    return Member(path, data_offset, _octal(header[124:136], name))


def _octal(field: bytes, name: str) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise _invalid(name, f"has a number that is not octal: {field!r}")
    return int(digits, 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _invalid(name: str, what: str) -> ArchiveInvalidError:
    return ArchiveInvalidError(f"{name} {what}, which no bundle does; get the archive again")
