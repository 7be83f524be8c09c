"""A folder that keeps images as packed archives, for an engine that has not built them."""

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import zstandard
from docker.errors import APIError, ImageLoadError
from docker.models.images import Image
from requests.exceptions import RequestException

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.support.progress import note

_CHUNK_BYTES = 1 << 20
# Of the toolchain's wheels, 3.2 GB: 1.2 GB in 29 s of CPU; level 9 makes it 1.1 GB in 110 s.
_LEVEL = 3
# What describes an image is some kilobytes of JSON.
_SMALL_BYTES = 1 << 20


class _BadArchive(Exception):
    """It is damaged, or holds something else than its name says."""


def archive_path(folder: Path, name: str) -> Path:
    """Return the archive of an image's name: <repository>-<tag>.tar.zst."""
    return folder / f"{name.replace(':', '-')}.tar.zst"


def load_image(
    client: docker.DockerClient, file: Path, name: str, labels: Mapping[str, str]
) -> Image | None:
    """Load the archive's image and give it the name; None where the archive is not good.

    A good one is whole and its image has the labels; another one is removed. It names no image
    itself, so that only what was checked has a name.

    Raises:
        AotlmError: the engine fails, or a bad archive cannot be removed.
    """
    try:
        _check(file, labels)
    except _BadArchive as problem:
        note(f"cache: {file} {problem}; it is built again")
        _remove(file)
        return None
    try:
        with file.open("rb") as raw:
            (image,) = client.images.load(zstandard.ZstdDecompressor().read_to_iter(raw))
        image.tag(name)
        return client.images.get(name)
    except (APIError, ImageLoadError, RequestException) as error:
        raise AotlmError(f"the Docker engine could not load {file}: {_why(error)}") from error


def keep_image(image: Image, file: Path) -> None:
    """Write the image, without its names, as an archive.

    Raises:
        AotlmError: the engine fails, or the disk is full.
    """
    packer = zstandard.ZstdCompressor(level=_LEVEL, threads=-1, write_checksum=True)
    try:
        with new_file(file) as made, made.open("wb") as raw, packer.stream_writer(raw) as packed:
            for chunk in image.save(_CHUNK_BYTES):
                packed.write(chunk)
    except (APIError, RequestException) as error:
        raise AotlmError(
            f"{file} was not written, as the Docker engine could not give the image: {_why(error)}"
        ) from error
    note(f"cache: {file} made, {file.stat().st_size / 1e6:.0f} MB")


def _why(error: Exception) -> str:
    if "no space left on device" in str(error).lower():
        return "its disk is full; make room (docker system prune) and run this again"
    return f"{str(error).strip().rstrip('.')}; solve that and run this again"


def _remove(file: Path) -> None:
    try:
        file.unlink()
    except OSError as error:
        raise AotlmError(
            f"{file} cannot be removed ({error.strerror}); remove it, or name another --cache"
        ) from None


def _check(file: Path, labels: Mapping[str, str]) -> None:
    """Read all of the archive before an engine does.

    Raises:
        _BadArchive: says what is wrong.
    """
    try:
        with (
            file.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|", bufsize=_CHUNK_BYTES) as tar,
        ):
            small = dict(_small_files(tar))
            while unpacked.read(_CHUNK_BYTES):  # what follows, up to the checksum
                pass
        found = _labels(small)
    except (zstandard.ZstdError, tarfile.TarError, ValueError, LookupError, TypeError) as error:
        raise _BadArchive(f"is damaged ({error})") from None
    except OSError as error:
        raise _BadArchive(f"cannot be read ({error.strerror})") from None
    wrong = sorted(key for key, value in labels.items() if found.get(key) != value)
    if wrong:
        raise _BadArchive(f"holds another image (its {wrong[0]} is {found.get(wrong[0])})")


def _small_files(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        if member.isfile() and member.size <= _SMALL_BYTES:
            content = tar.extractfile(member)
            assert content
            yield member.name, content.read()


def _labels(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The labels of an archive's one image, which has no name."""
    (entry,) = json.loads(files["manifest.json"])
    if entry["RepoTags"]:
        raise ValueError(f"it names its image {entry['RepoTags'][0]}")
    return dict(json.loads(files[entry["Config"]])["config"]["Labels"])
