"""Bundles in their three forms, and every way to spoil one."""

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from aotlm_runtime import GenerationOptions, errors, load
from aotlm_runtime.bundle import reader
from aotlm_runtime.bundle.header import data_start, read_header
from aotlm_runtime.bundle.reader import open_bundle
from tests.runtime import fake

Members = list[tuple[tarfile.TarInfo, bytes]]
SAMPLE = "hello there"


def answer(path: Path) -> str:
    return "".join(load(path).generate(SAMPLE, GenerationOptions(max_tokens=40)))


def test_folder_archive_and_compressed_archive_give_the_same_text(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    compressed = tmp_path / "m.tar.zst"
    compressed.write_bytes(zstandard.compress(archive.read_bytes()))
    texts = {answer(path) for path in (bundle, archive, compressed)}
    ids = [fake.USER, *SAMPLE.encode(), fake.END, fake.ASSISTANT]
    assert texts == {bytes(fake.expected(ids, 40)).decode()}
    assert not any((tmp_path / "cache/aotlm").iterdir())


def test_a_bundle_of_format_1_answers_as_before(bundle: Path) -> None:
    now = answer(bundle)
    old = fake.as_format1(bundle)
    assert answer(old) == now
    with open_bundle(old) as opened:
        assert opened.manifest.abi.version == 1
        assert opened.manifest.format_version == 2  # what it is read as
        assert opened.manifest.abi.state_bytes.C == 8


@pytest.mark.parametrize("n_before", [0, 512])
def test_the_header_of_a_weight_file_is_read_where_the_file_begins(
    bundle: Path, tmp_path: Path, n_before: int
) -> None:
    path = tmp_path / "moved"
    path.write_bytes(bytes([7]) * n_before + (bundle / "weights.safetensors").read_bytes())
    with path.open("rb") as file:
        given = (n_before,) if n_before else ()  # the beginning is the default
        assert data_start(file.fileno(), *given) == 4096
        assert list(read_header(file.fileno(), *given)) == ["w"]


def test_unpacking_an_archive_gives_the_folder_that_it_was_made_of(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)  # files are longer, and end within one
    with open_bundle(fake.write_tar(bundle, tmp_path / "m.tar")) as opened:
        opened.unpack(tmp_path / "unpacked")
    found = {
        folder: {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (bundle, tmp_path / "unpacked")
    }
    assert found[tmp_path / "unpacked"] == found[bundle]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state_bytes_per_position": 16}, "was edited: its ABI has the digest"),
        ({"state": [{}]}, "is not a valid manifest of format 1: 'rewindable'"),
        ({"more": 1}, "is not a valid manifest of format 1: Object contains unknown field `more`"),
        ({"state_bytes_per_position": "8"}, "is not a valid manifest of format 1: Expected `int`"),
    ],
)
def test_a_wrong_manifest_of_format_1_is_refused_in_one_sentence(
    bundle: Path, change: dict[str, object], sentence: str
) -> None:
    path = fake.as_format1(bundle) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps({**manifest, "abi": {**manifest["abi"], **change}}))
    with pytest.raises(errors.ManifestInvalidError, match=sentence):
        load(bundle)


def test_opening_and_closing_leaves_no_open_file(bundle: Path, tmp_path: Path) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    for path in (bundle, archive):
        before = len(os.listdir("/proc/self/fd"))
        open_bundle(path).close()
        assert len(os.listdir("/proc/self/fd")) == before


def edit(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_library(folder: Path) -> None:
    path = folder / "lib/test/libaotlm_model.so"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def truncate(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 8000)


def remove(folder: Path) -> None:
    (folder / "tokenizer/tokenizer.json").unlink()


def add(folder: Path) -> None:
    (folder / "lib/test/extra.so").write_bytes(b"x")


def link(folder: Path) -> None:
    target = folder / "tokenizer/tokenizer.json"
    target.rename(folder.parent / "elsewhere.json")
    target.symlink_to(folder.parent / "elsewhere.json")


def edit_abi(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"max_chunk_tokens": 32', '"max_chunk_tokens": 64'))


def break_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-20])


def drop_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


SPOILED: list[tuple[Callable[[Path], None], type[Exception], str]] = [
    (
        edit,
        errors.FileChangedError,
        r"byte 4096 of 'weights.safetensors' in .* was edited or",
    ),
    (edit_library, errors.FileChangedError, r"libaotlm_model.so' in .* was edited"),
    (truncate, errors.FileChangedError, r"has 8000 bytes, but the manifest says 8192"),
    (remove, errors.FileMissingError, r"lacks 'tokenizer/tokenizer.json'"),
    (add, errors.FileUnlistedError, r"holds 'lib/test/extra.so'"),
    (link, errors.FileUnlistedError, r"tokenizer.json', which is not a regular file"),
    (edit_abi, errors.ManifestInvalidError, r"was edited: its ABI has the digest"),
    (break_manifest, errors.ManifestInvalidError, r"format version: Input data was truncated"),
    (drop_manifest, errors.BundleNotFoundError, r"holds no manifest.json"),
]


@pytest.mark.parametrize(("spoil", "kind", "sentence"), SPOILED)
def test_a_spoiled_folder_is_refused(
    bundle: Path, spoil: Callable[[Path], None], kind: type[Exception], sentence: str
) -> None:
    spoil(bundle)
    with pytest.raises(kind, match=sentence):
        answer(bundle)


@pytest.mark.parametrize(("spoil", "kind", "sentence"), SPOILED[:5])
def test_an_archive_of_a_spoiled_folder_is_refused(
    bundle: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    kind: type[Exception],
    sentence: str,
) -> None:
    spoil(bundle)
    with pytest.raises(kind, match=sentence):
        answer(fake.write_tar(bundle, tmp_path / "m.tar"))


def with_member(name: str, kind: bytes = tarfile.REGTYPE) -> Callable[[Members], Members]:
    return lambda members: [*members, fake.member(name, kind=kind)]


def twice(members: Members) -> Members:
    return [*members, members[0]]


def pad_with(more: bytes) -> Callable[[Members], Members]:
    return lambda members: [
        fake.member(".pad", data[: -len(more)] + more) if info.name == ".pad" else (info, data)
        for info, data in members
    ]


def unaligned(members: Members) -> Members:
    return [
        fake.member(".pad", bytes((len(data) + 512) % 4096))
        if info.name == ".pad"
        else (info, data)
        for info, data in members
    ]


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        (
            with_member("/etc/passwd"),
            errors.ArchiveInvalidError,
            "'/etc/passwd', which is not a plain",
        ),
        (with_member("../x"), errors.ArchiveInvalidError, "'../x', which is not a plain"),
        (with_member("tokenizer/../x"), errors.ArchiveInvalidError, "which is not a plain"),
        (with_member("a\\b"), errors.ArchiveInvalidError, "which is not a plain"),
        (with_member("a\nb"), errors.ArchiveInvalidError, "which is not a plain"),
        (
            with_member("l", tarfile.SYMTYPE),
            errors.ArchiveInvalidError,
            "'l', which is not a regular",
        ),
        (
            with_member("l", tarfile.LNKTYPE),
            errors.ArchiveInvalidError,
            "'l', which is not a regular",
        ),
        (
            with_member("d", tarfile.DIRTYPE),
            errors.ArchiveInvalidError,
            "'d/', which is not a regular",
        ),
        (
            with_member("f", tarfile.FIFOTYPE),
            errors.ArchiveInvalidError,
            "'f', which is not a regular",
        ),
        (with_member("x"), errors.FileUnlistedError, "holds 'x', which its manifest does not list"),
        (twice, errors.ArchiveInvalidError, "holds 'lib/test/include/aotlm_model.h' twice"),
        (pad_with(b"x"), errors.ArchiveInvalidError, "holds bytes in .pad"),
        (unaligned, errors.WeightsInvalidError, "must start at multiples of 4096"),
    ],
)
def test_an_archive_with_a_bad_member_is_refused(
    bundle: Path, tmp_path: Path, change: fake.Change, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        load(fake.write_tar(bundle, tmp_path / "m.tar", change))


@pytest.mark.parametrize("n_bytes", [0, 100, 700, 20_000, -1])
def test_a_truncated_archive_is_refused(bundle: Path, tmp_path: Path, n_bytes: int) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    data = archive.read_bytes()
    end = len(data.rstrip(b"\0")) + 1 if n_bytes == -1 else n_bytes
    archive.write_bytes(data[:end])
    with pytest.raises(errors.ArchiveInvalidError, match="get the archive again"):
        load(archive)


def test_bytes_behind_an_archive_are_refused(bundle: Path, tmp_path: Path) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(errors.ArchiveInvalidError, match="bytes behind its end"):
        load(archive)


def test_a_damaged_compressed_archive_is_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    compressed = zstandard.compress(archive.read_bytes())
    for spoiled in (compressed[:4] + b"\xff" * 50, compressed[: len(compressed) // 2]):
        archive.write_bytes(spoiled)
        with pytest.raises(errors.ArchiveInvalidError, match="get the archive again"):
            load(archive)


def test_without_verification_sizes_are_still_compared(bundle: Path) -> None:
    edit(bundle)
    load(bundle, verify=False)
    truncate(bundle)
    with pytest.raises(errors.FileChangedError):
        load(bundle, verify=False)


def test_a_path_without_a_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.BundleNotFoundError, match=r"no bundle at .*/nothing"):
        load(tmp_path / "nothing")
