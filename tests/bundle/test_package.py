"""Packaging: a folder and an archive, complete, checked against the import, and repeatable."""

import errno
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from aotlm.bundle import archive
from aotlm.bundle.package import describe_file, package
from aotlm.codegen.compile import compile_import
from aotlm.errors import AotlmError
from aotlm_runtime.bundle.manifest import BLOCK_SIZE_BYTES, read_manifest
from aotlm_runtime.compiled.library import choose_library
from aotlm_runtime.host.cpu import cpu_features
from tests.bundle.conftest import TARGET
from tests.unit.handwritten import leave_kernels, write_import


@pytest.fixture
def out(stages: Path, tmp_path: Path) -> Path:
    """A copy of the stages that a test may spoil."""
    return Path(shutil.copytree(stages, tmp_path / stages.name))


def test_the_manifest_lists_every_file_of_the_folder_with_its_digest(out: Path) -> None:
    package(out)
    bundle = out / "bundle"
    manifest = read_manifest(bundle / "manifest.json")
    present = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert {file.path for file in manifest.files} == present - {"manifest.json"}
    for file in manifest.files:
        data = (bundle / file.path).read_bytes()
        assert (file.size_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert [library.target for library in manifest.libraries] == [TARGET]
    assert manifest.tokenizer_files == ["tokenizer/tokenizer.json"]


def test_a_large_file_has_the_digest_of_each_block_beside_that_of_the_whole(
    out: Path, tmp_path: Path
) -> None:
    data = bytes(range(256)) * (BLOCK_SIZE_BYTES // 128) + b"rest"  # two blocks and a bit
    (tmp_path / "large").write_bytes(data)
    (tmp_path / "one").write_bytes(data[:BLOCK_SIZE_BYTES])
    (tmp_path / "empty").write_bytes(b"")
    begins = (0, BLOCK_SIZE_BYTES, 2 * BLOCK_SIZE_BYTES)
    file = describe_file(tmp_path, "large")
    assert (file.size_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert file.block_blake3 == [
        blake3(data[begin : begin + BLOCK_SIZE_BYTES]).hexdigest() for begin in begins
    ]
    for name in ("one", "empty"):
        assert describe_file(tmp_path, name).block_blake3 == []
    package(out)
    manifest = read_manifest(out / "bundle" / "manifest.json")
    assert (manifest.format_version, manifest.block_size_bytes) == (2, BLOCK_SIZE_BYTES)


def test_two_targets_are_in_one_bundle(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_kernels(monkeypatch)
    compile_import(out, "x86-64-v4")
    package(out)
    manifest = read_manifest(out / "bundle" / "manifest.json")
    assert [library.target for library in manifest.libraries] == [TARGET, "x86-64-v4"]
    best = choose_library(manifest.libraries, cpu_features()).target
    assert _embed_library(out / "bundle") == f"{out}/bundle/lib/{best}\n"
    assert _embed_library(out / "bundle", "x86-64-v4") == f"{out}/bundle/lib/x86-64-v4\n"
    reason = f"error: .* has no library for znver9; it has {TARGET}, x86-64-v4\n"
    assert re.fullmatch(reason, _embed_library(out / "bundle", "znver9"))


def _embed_library(*words: Path | str) -> str:
    """Run the script by which examples/embed finds its library; return what it says."""
    script = Path(__file__).parents[2] / "examples" / "embed" / "library.py"
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    return done.stdout or done.stderr


def test_the_archive_is_sorted_ustar_with_aligned_weights_last(out: Path) -> None:
    made = package(out)
    assert made == out / "counter-f32.tar"
    data = made.read_bytes()
    assert data[257:265] == b"ustar\x0000"
    with tarfile.open(made) as tar:
        members = tar.getmembers()
        names = [member.name for member in members]
        assert names[-2:] == [".pad", "weights.safetensors"]
        assert names[:-2] == sorted(names[:-2])
        assert members[-1].offset_data % 4096 == 0
        for member in members:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.mtime == 0
            assert member.mode == (0o755 if member.name.endswith(".so") else 0o644)
            file = tar.extractfile(member)
            assert file is not None
            if member.name != ".pad":
                assert file.read() == (out / "bundle" / member.name).read_bytes()


def test_packaging_again_elsewhere_gives_the_same_bytes(out: Path, tmp_path: Path) -> None:
    first = package(out).read_bytes()
    other = shutil.copytree(out, tmp_path / "another ö" / "counter-f32")
    shutil.rmtree(other / "bundle")
    assert package(other).read_bytes() == first
    assert package(other).read_bytes() == first


def test_compress_packs_the_same_archive_with_zstd(out: Path) -> None:
    plain = package(out).read_bytes()
    made = package(out, compress=True)
    assert made == out / "counter-f32.tar.zst"
    with made.open("rb") as file:
        assert zstandard.ZstdDecompressor().stream_reader(file).read() == plain


def test_the_archive_goes_where_it_is_told(out: Path, tmp_path: Path) -> None:
    assert package(out, tmp_path / "new folder" / "x.tar").is_file()


def test_the_weights_take_no_second_place_on_disk(out: Path) -> None:
    package(out)
    assert (out / "bundle/weights.safetensors").samefile(out / "import/weights.safetensors")


def test_a_library_of_another_import_is_refused(out: Path) -> None:
    write_import(out, layout="cd")
    with pytest.raises(AotlmError, match=r"compiled for another import.*run inv compile"):
        package(out)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer/tokenizer.json"])
def test_a_file_changed_after_the_import_is_refused_and_leaves_no_bundle(
    out: Path, name: str
) -> None:
    path = out / "import" / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(AotlmError, match=r"was changed after the import.*--force"):
        package(out)
    assert sorted(p.name for p in out.iterdir()) == ["import", "lib"]


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer/tokenizer.json"])
def test_a_missing_file_is_named(out: Path, name: str) -> None:
    (out / "import" / name).unlink()
    with pytest.raises(AotlmError, match=f"{name} is missing"):
        package(out)


def test_a_broken_library_description_is_refused(out: Path) -> None:
    (out / "lib" / TARGET / "library.json").write_text("{}")
    with pytest.raises(AotlmError, match=r"library\.json is broken"):
        package(out)


def test_without_a_library_the_step_to_run_is_named(out: Path) -> None:
    shutil.rmtree(out / "lib")
    with pytest.raises(AotlmError, match="run inv compile first"):
        package(out)


def test_a_file_too_large_for_ustar_is_one_sentence(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1000)
    with pytest.raises(AotlmError, match=r"has \d+ bytes.*at most 1000; use the folder"):
        package(out)
    assert not list(out.glob("*.tar"))


def test_the_format_really_ends_at_that_size() -> None:
    member = tarfile.TarInfo("weights.safetensors")
    member.size = archive.MAX_MEMBER_BYTES
    member.tobuf(tarfile.USTAR_FORMAT)
    member.size += 1
    with pytest.raises(ValueError, match="overflow"):
        member.tobuf(tarfile.USTAR_FORMAT)


def test_a_full_disk_is_one_sentence_and_leaves_the_old_archive(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = package(out).read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", no_space)
    with pytest.raises(AotlmError, match=r"was not written: No space left on device.*make room"):
        package(out)
    assert [path.name for path in out.glob("*.tar")] == ["counter-f32.tar"]
    assert (out / "counter-f32.tar").read_bytes() == before
    assert not list(out.glob(".*"))


def test_hidden_folders_and_foreign_files_are_not_packaged(out: Path) -> None:
    hidden = shutil.copytree(out / "lib" / TARGET, out / "lib" / f".{TARGET}.1.tmp")
    (out / "lib" / TARGET / "libforeign.so").write_bytes(b"foreign")
    (out / "lib" / "notes").mkdir()
    (out / "lib" / "notes" / "libother.so").write_bytes(b"other")
    package(out)
    names = {p.name for p in (out / "bundle").rglob("*")}
    assert not names & {"libforeign.so", "libother.so", "notes", hidden.name}
    manifest = read_manifest(out / "bundle" / "manifest.json")
    assert [library.target for library in manifest.libraries] == [TARGET]
