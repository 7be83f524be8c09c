"""The list of an archive's members, at the edges of the format; and no descriptor stays open."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aotlm_runtime import errors
from aotlm_runtime.bundle.archive import Member, read_members
from aotlm_runtime.bundle.manifest import MAX_MANIFEST_BYTES
from aotlm_runtime.bundle.reader import open_bundle
from tests.runtime import fake

BLOCK = 512
MAX_ZERO_BLOCKS = 64


def header(name: str = "a", size: int = 0, **changed: bytes) -> bytes:
    """A header by the standard library, with fields put in its place afterwards."""
    info = tarfile.TarInfo(name)
    info.size = size
    fields = {
        "octal": (124, 12), "magic": (257, 8), "prefix": (345, 155),
    }  # fmt: skip
    data = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    for field, value in changed.items():
        begin, length = fields[field]
        data[begin : begin + length] = value.ljust(length, b"\0")
    total = sum(data[:148]) + 8 * ord(" ") + sum(data[156:])
    data[148:156] = f"{total:06o}\0 ".encode()
    return bytes(data)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], dict[str, Member]]:
    path = tmp_path / "x.tar"

    def members(data: bytes) -> dict[str, Member]:
        path.write_bytes(data)
        with path.open("rb") as file:
            return read_members(file.fileno(), "x.tar")

    return members


Read = Callable[[bytes], dict[str, Member]]
END = bytes(2 * BLOCK)


def test_two_blocks_of_zeros_are_the_end(read: Read) -> None:
    assert read(header("a", 3) + b"abc".ljust(BLOCK, b"\0") + END) == {"a": Member("a", BLOCK, 3)}
    assert read(END) == {}


def test_one_block_of_zeros_is_no_end(read: Read) -> None:
    with pytest.raises(errors.ArchiveInvalidError, match="is cut off after 1024 bytes"):
        read(header() + bytes(BLOCK))


@pytest.mark.parametrize(("n_blocks", "is_taken"), [(2, True), (MAX_ZERO_BLOCKS, True),
                                                    (MAX_ZERO_BLOCKS + 1, False)])  # fmt: skip
def test_zeros_behind_the_end_have_a_limit(read: Read, n_blocks: int, is_taken: bool) -> None:
    data = header() + bytes(n_blocks * BLOCK)
    if is_taken:
        assert list(read(data)) == ["a"]
        return
    with pytest.raises(errors.ArchiveInvalidError, match="holds bytes behind its end at 512"):
        read(data)


def test_the_last_byte_behind_the_end_counts(read: Read) -> None:
    with pytest.raises(errors.ArchiveInvalidError, match="holds bytes behind its end"):
        read(header() + END[:-1] + b"x")


@pytest.mark.parametrize(
    "magic", [b"ustar  \0", b"ustar\x0011", b"ustar ", b"\0" * 8, b"USTAR\x0000"]
)
def test_only_the_magic_of_ustar_is_taken(read: Read, magic: bytes) -> None:
    data = header(magic=magic) + END
    if magic[:6] == b"ustar\0":
        assert list(read(data)) == ["a"]
        return
    with pytest.raises(errors.ArchiveInvalidError, match="has no ustar header at byte 0"):
        read(data)


def test_a_wrong_checksum_is_no_header(read: Read) -> None:
    data = bytearray(header() + END)
    data[0] ^= 1
    with pytest.raises(errors.ArchiveInvalidError, match="has no ustar header at byte 0"):
        read(bytes(data))


def test_the_prefix_comes_before_the_name(read: Read) -> None:
    assert list(read(header("b", prefix=b"lib/test") + END)) == ["lib/test/b"]
    with pytest.raises(
        errors.ArchiveInvalidError, match=r"'\.\./b', which is not a plain relative path"
    ):
        read(header("b", prefix=b"..") + END)


@pytest.mark.parametrize("size", [b"00000000008", b"00000000009", b"0000000000x", b"-0000000001",
                                  b"", b"\x80\0\0\0\0\0\0\0\0\0\0\x01"])  # fmt: skip
def test_a_size_that_is_not_octal_is_refused(read: Read, size: bytes) -> None:
    with pytest.raises(errors.ArchiveInvalidError, match="has a number that is not octal"):
        read(header(octal=size) + END)


def test_a_size_is_octal(read: Read) -> None:
    member = read(header(octal=b"00000000017") + bytes(BLOCK) + END)["a"]
    assert member.size_bytes == 15


@pytest.mark.parametrize(("size", "is_inside"), [(3 * BLOCK, True), (3 * BLOCK + 1, False)])
def test_a_member_ends_within_the_archive(read: Read, size: int, is_inside: bool) -> None:
    data = header("a", size) + bytes(BLOCK) + END
    sentence = "is cut off" if is_inside else "ends inside 'a'"  # all of it is data: no end is left
    with pytest.raises(errors.ArchiveInvalidError, match=sentence):
        read(data)


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def weights_header(n_bytes: int) -> Callable[[Path], None]:
    """Give the weight file a header of another length; its data section keeps its size."""

    def spoil(folder: Path) -> None:
        path = folder / "weights.safetensors"
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        head = data[8:begin].rstrip().ljust(n_bytes)
        path.write_bytes(n_bytes.to_bytes(8, "little") + head + data[begin:])
        fake.write_manifest(
            folder,
            {
                p.relative_to(folder).as_posix(): p.read_bytes()
                for p in folder.rglob("*")
                if p.is_file() and p.name != "manifest.json"
            },
        )

    return spoil


def test_a_weight_file_whose_data_starts_inside_a_page_is_refused(bundle: Path) -> None:
    weights_header(4000)(bundle)
    with (
        open_bundle(bundle) as opened,
        pytest.raises(errors.WeightsInvalidError, match=r"start at byte 0 \+ 4008, but must"),
    ):
        opened.map_weights()


def test_a_pad_larger_than_a_page_is_refused(bundle: Path, tmp_path: Path) -> None:
    def more(members: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [
            fake.member(".pad", data + bytes(4096)) if info.name == ".pad" else (info, data)
            for info, data in members
        ]

    with pytest.raises(errors.ArchiveInvalidError, match=r"holds bytes in \.pad"):
        open_bundle(fake.write_tar(bundle, tmp_path / "m.tar", more))


def test_a_manifest_over_the_limit_is_not_read(bundle: Path) -> None:
    limit = MAX_MANIFEST_BYTES
    for size, sentence in ((limit + 1, f"has {limit + 1} bytes, but at most {limit}"),
                           (limit, "has no readable format version")):  # fmt: skip
        os.truncate(bundle / "manifest.json", size)
        with pytest.raises(errors.ManifestInvalidError, match=sentence):
            open_bundle(bundle)


def test_a_header_that_is_used_and_not_listed_is_refused(bundle: Path) -> None:
    path = bundle / "manifest.json"
    unlisted = path.read_text().replace('"header": "lib/test/include/', '"header": "lib/test/')
    path.write_text(unlisted)
    with pytest.raises(errors.ManifestInvalidError, match="does not list it"):
        open_bundle(bundle)


def test_a_refusal_leaves_no_descriptor_open(bundle: Path, tmp_path: Path) -> None:
    archive = fake.write_tar(bundle, tmp_path / "m.tar")
    data = archive.read_bytes()
    spoiled = {
        "cut.tar": data[:700],
        "tail.tar": data + b"x",
        "member.tar": header("../x") + data,
        "compressed.tar.zst": b"\x28\xb5\x2f\xfd" + b"\xff" * 50,
    }
    (bundle / "extra").write_bytes(b"x")
    os.symlink("extra", bundle / "link")
    before = n_descriptors()
    for name, content in spoiled.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.ArchiveInvalidError):
            open_bundle(tmp_path / name)
        assert n_descriptors() == before, name
    for name in ("link", "extra"):
        with pytest.raises(errors.FileUnlistedError, match=name):
            open_bundle(bundle)
        assert n_descriptors() == before, name
        (bundle / name).unlink()
    (bundle / "manifest.json").write_text("{")
    with pytest.raises(errors.ManifestInvalidError):
        open_bundle(bundle)
    assert n_descriptors() == before
