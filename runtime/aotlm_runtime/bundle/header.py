"""A safetensors file: the header's length (u64, little-endian), the header as JSON, the data."""

import json
import os
from typing import Any

LENGTH_BYTES = 8


def data_start(fd: int, offset: int = 0) -> int:
    """Return where the data section of the file that begins at `offset` of `fd` begins in it."""
    return LENGTH_BYTES + int.from_bytes(os.pread(fd, LENGTH_BYTES, offset), "little")


def read_header(fd: int, offset: int = 0) -> dict[str, Any]:
    """Return the header: for each tensor its dtype, shape and data_offsets, and __metadata__.

    Raises:
        ValueError: it is no JSON.
    """
    size_bytes = data_start(fd, offset) - LENGTH_BYTES
    header: dict[str, Any] = json.loads(os.pread(fd, size_bytes, offset + LENGTH_BYTES))
    return header
