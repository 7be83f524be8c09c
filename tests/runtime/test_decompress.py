"""Compressed archives that expand to more than they may, or than there is room for."""

import io
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from aotlm_runtime import errors
from aotlm_runtime.bundle import decompress
from aotlm_runtime.bundle.reader import open_bundle
from tests.runtime import fake

ZEROS = bytes(1 << 20)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/aotlm"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the bytes that are written to the disk."""
    count: Counter[str] = Counter()
    write = os.write

    def counted(fd: int, data: bytes) -> int:
        count["bytes"] += len(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", counted)
    return count


def compressed(path: Path, *parts: bytes, n_zeros: int = 0) -> Path:
    """Write parts and then `n_zeros` MiB of zeros, compressed; that many zeros take little room."""
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        for part in (*parts, *([ZEROS] * n_zeros)):
            stream.write(part)
    return path


def refused(path: Path, sentence: str) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(errors.ArchiveInvalidError, match=sentence):
        open_bundle(path)
    assert os.listdir("/proc/self/fd") == before


def test_zeros_without_an_end_are_refused(
    tmp_path: Path, cache: Path, written: Counter[str]
) -> None:
    bomb = compressed(tmp_path / "m.tar.zst", n_zeros=1000)
    assert bomb.stat().st_size < 1 << 17
    refused(bomb, "expands to more than the 268,435,456 bytes that can come before a manifest")
    assert written["bytes"] < 1 << 29
    assert not any(cache.iterdir())


def test_what_comes_behind_the_members_that_the_manifest_lists_is_bounded(
    bundle: Path, tmp_path: Path, cache: Path, written: Counter[str]
) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar").read_bytes()
    bomb = compressed(tmp_path / "m.tar.zst", archive, n_zeros=1000)
    refused(bomb, r"expands to more than the 1,[\d,]+ bytes that its manifest allows")
    assert written["bytes"] < len(archive) + (1 << 23)


def test_a_member_that_grew_is_bounded(
    bundle: Path, tmp_path: Path, cache: Path, written: Counter[str]
) -> None:
    def grown(
        members: list[tuple[tarfile.TarInfo, bytes]],
    ) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        for info, data in members:
            is_weights = info.name == "weights.safetensors"
            yield fake.member(info.name, ZEROS * 50) if is_weights else (info, data)

    archive = fake.write_tar(bundle, tmp_path / "m.tar", grown).read_bytes()
    refused(compressed(tmp_path / "m.tar.zst", archive), "bytes that its manifest allows")
    assert written["bytes"] < 1 << 24


def test_several_frames_are_one_archive_and_what_is_no_frame_is_refused(
    bundle: Path, tmp_path: Path, cache: Path
) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar").read_bytes()
    path = tmp_path / "m.tar.zst"
    frames = [zstandard.compress(part) for part in (archive[:5000], archive[5000:])]
    path.write_bytes(b"".join(frames))
    open_bundle(path).close()
    path.write_bytes(b"".join([*frames, b"more"]))
    refused(path, "cannot decompress")
    path.write_bytes(frames[0] + frames[1][:-30])
    refused(path, "is cut off|ends inside|cannot decompress")


def test_a_disk_without_room_is_told_with_both_sizes(
    bundle: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar").read_bytes()
    path = compressed(tmp_path / "m.tar.zst", archive[: len(archive) // 4])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(decompress, "_CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    compressed(path, archive)
    refused(path, r"[\d,]+ bytes are to come, but 100 are free; make room there or set XDG_CACHE")


def test_without_a_home_the_temporary_folder_is_used(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*names: str) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(decompress, "cache_folder", nowhere)
    archive = fake.write_tar(bundle, tmp_path / "m.tar").read_bytes()
    open_bundle(compressed(tmp_path / "m.tar.zst", archive)).close()


def test_an_archive_that_names_what_is_no_path_is_refused_before_its_bytes_come(
    tmp_path: Path, cache: Path, written: Counter[str]
) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(fake.member("../x")[0])
    refused(compressed(tmp_path / "m.tar.zst", plain.getvalue(), n_zeros=100), "not a plain")
    assert written["bytes"] < 1 << 23
