"""Machines on which little can be written or executed: a bundle runs there all the same."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import zstandard

from aotlm_runtime import errors
from aotlm_runtime.bundle import decompress
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.compiled.library import CompiledModel
from tests.runtime import fake

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
READ_ONLY = """
mount -o remount,bind,ro / || true
for place in /tmp /var/tmp /dev/shm "$FOLDER"; do
    mount --bind "$place" "$place" && mount -o remount,bind,ro "$place"
    if touch "$place/x" 2>/dev/null; then echo "$place can be written" >&2; exit 9; fi
done
cd "$FOLDER"
"""
NO_EXECUTION = """
mount -t tmpfs -o noexec tmpfs "$TMPDIR"
cp /bin/true "$TMPDIR/true"
if "$TMPDIR/true" 2>/dev/null; then echo "$TMPDIR allows execution" >&2; exit 9; fi
"""


@pytest.fixture(params=["folder", "tar", "tar.zst"])
def form(request: pytest.FixtureRequest, bundle: Path, tmp_path: Path) -> Path:
    """A bundle in each of its forms."""
    if request.param == "folder":
        return bundle
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    if request.param == "tar":
        return archive
    packed = tmp_path / "m.tar.zst"
    packed.write_bytes(zstandard.compress(archive.read_bytes()))
    return packed


def run_in(mounts: str, bundle: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a bundle where the shell commands `mounts` have changed what this process alone sees."""
    temporary = folder / "temporary"
    temporary.mkdir()
    command = f'set -e\n{mounts}\nexec "$PYTHON" -m aotlm_runtime run "$BUNDLE" --prompt abc'
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "BUNDLE": str(bundle),
        "FOLDER": str(folder),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    words = ["unshare", "--mount", "sh", "-c", command]
    return subprocess.run(words, env=environment, capture_output=True, text=True)


@needs_root
@pytest.mark.parametrize("mounts", [READ_ONLY, NO_EXECUTION], ids=["read-only", "no-execution"])
def test_a_bundle_runs_where_nothing_can_be_written_or_executed(
    form: Path, tmp_path: Path, mounts: str
) -> None:
    done = run_in(mounts, form, tmp_path)
    assert done.returncode == 0, done.stderr
    ids = [fake.USER, *b"abc", fake.END, fake.ASSISTANT]
    assert done.stdout == bytes(fake.expected(ids, 1000)).decode() + "\n"


def test_each_model_has_a_library_of_its_own(stub: bytes) -> None:
    """The loader gives out one library for one name, and descriptors come again."""
    models = [CompiledModel(stub, fake.abi()) for _ in range(3)]
    assert len({model.address("aotlm_set_threads") for model in models}) == 3


def test_loading_leaves_no_descriptor_open(stub: bytes) -> None:
    before = os.listdir("/proc/self/fd")
    CompiledModel(stub, fake.abi())
    with pytest.raises(errors.LibraryInvalidError):
        CompiledModel(b"no library", fake.abi())
    assert os.listdir("/proc/self/fd") == before


def test_where_memory_cannot_be_executed_a_file_is(
    stub: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, flags: int = 0) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    CompiledModel(stub, fake.abi())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    sentence = r"from memory: .*Permission denied, from a file: .*No such file.*; check that this"
    with pytest.raises(errors.LibraryInvalidError, match=sentence):
        CompiledModel(stub, fake.abi())


def test_without_a_folder_an_archive_needs_room_in_memory(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fake.write_tar(bundle, tmp_path / "m.tar").read_bytes()
    packed = tmp_path / "m.tar.zst"
    packed.write_bytes(zstandard.compress(plain))
    monkeypatch.setattr(decompress, "_place", lambda: decompress._Place(None))
    open_bundle(packed).close()
    monkeypatch.setattr(decompress, "available_bytes", lambda: 0)
    monkeypatch.setattr(decompress, "_CHUNK_BYTES", 1 << 14)
    with pytest.raises(errors.ArchiveInvalidError, match=r"into memory: [\d,]+ bytes are to come"):
        open_bundle(packed)
