"""The schema: what is written is read back, and what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from aotlm_runtime.bundle import manifest as schema
from aotlm_runtime.errors import ManifestInvalidError
from tests.runtime import fake


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fake.write_manifest(tmp_path, {name: b"" for name in _NAMES})
    return tmp_path / "manifest.json"


_NAMES = (
    "lib/test/include/aotlm_model.h",
    "lib/test/libaotlm_model.a",
    "lib/test/libaotlm_model.so",
    "weights.safetensors",
)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_manifest_is_read_back_and_written_as_the_same_bytes(path: Path) -> None:
    manifest = schema.read_manifest(path)
    assert schema.encode(manifest) == path.read_bytes()
    assert manifest.abi == fake.abi()


def test_json_has_sorted_keys_two_spaces_and_a_final_newline(path: Path) -> None:
    text = path.read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_the_digest_covers_every_field_but_itself() -> None:
    plain = fake.abi()
    assert schema.abi_digest(plain) == plain.digest
    assert fake.abi(position_block=128).digest != plain.digest
    assert fake.abi(decode_workspace=schema.Bytes(C=1)).digest != plain.digest
    assert schema.abi_digest(fake.abi(digest="x")) == plain.digest


def test_bytes_are_linear_in_the_sizes_of_a_call() -> None:
    size = schema.Bytes(const=1, T=10, R=100, C=1000, threads=10000)
    assert size.at(T=2, R=3, C=4, threads=5) == 54321
    assert size.at() == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"weights": 1}, r"Expected `str`, got `int` - at `\$.weights`"),
        ({"format_version": 3}, "has format version 3, but this program reads version 2"),
        ({"weights": "w"}, "uses the file 'w' but does not list it"),
        ({"files": [{"path": "../x", "size_bytes": 0, "sha256": ""}]}, "not a plain relative path"),
    ],
)
def test_a_wrong_manifest_is_refused_in_one_sentence(
    path: Path, changes: dict[str, Any], sentence: str
) -> None:
    edit(path, **changes)
    with pytest.raises(ManifestInvalidError, match=sentence) as caught:
        schema.read_manifest(path)
    assert "\n" not in str(caught.value)


BLOCKS = {"path": "weights.safetensors", "sha256": "0" * 64, "size_bytes": 8193}


@pytest.mark.parametrize(
    ("size", "blocks", "sentence"),
    [
        (4096, ["0"] * 2, "2 digests of blocks for 'weights.safetensors', but its 8193 bytes are"),
        (4096, ["0"] * 4, "8193 bytes are 3 blocks of 4096; make the bundle again"),
        (8192, ["0"] * 3, "8193 bytes are 2 blocks of 8192"),
        (0, ["0"] * 3, "blocks of 0 bytes, but a block must have a multiple of 4096"),
        (-4096, ["0"] * 3, "blocks of -4096 bytes"),
        (3000, ["0"] * 3, "blocks of 3000 bytes"),
        (4096, "0", r"Expected `array`, got `str` - at `\$.files\[3\].block_blake3`"),
        (4096, [1, 2, 3], r"Expected `str`, got `int` - at `\$.files\[3\].block_blake3\[0\]`"),
        ("4096", ["0"] * 3, r"Expected `int`, got `str` - at `\$.block_size_bytes`"),
    ],
)
def test_wrong_blocks_are_refused_in_one_sentence(
    path: Path, size: Any, blocks: Any, sentence: str
) -> None:
    files = json.loads(path.read_text())["files"][:-1]
    right = ["0"] * 3
    edit(path, files=[*files, {**BLOCKS, "block_blake3": right}], block_size_bytes=4096)
    assert schema.read_manifest(path).files[-1].block_blake3 == right
    edit(path, files=[*files, {**BLOCKS, "block_blake3": blocks}], block_size_bytes=size)
    with pytest.raises(ManifestInvalidError, match=sentence) as caught:
        schema.read_manifest(path)
    assert "\n" not in str(caught.value)


def test_a_manifest_of_format_1_is_still_read() -> None:
    path = Path(__file__).with_name("manifest-1.json")
    manifest = schema.read_manifest(path)
    assert (manifest.abi.version, manifest.block_size_bytes) == (1, 0)
    assert not any(file.block_blake3 for file in manifest.files)
    assert [tensor.name for tensor in manifest.abi.state][:2] == ["k_cache.0", "v_cache.0"]
    assert manifest.model.architecture == "Qwen2ForCausalLM"


def test_files_out_of_order_are_refused(path: Path) -> None:
    files = json.loads(path.read_text())["files"]
    edit(path, files=files[::-1])
    with pytest.raises(ManifestInvalidError, match="twice or out of order"):
        schema.read_manifest(path)


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalidError, match=r"cannot read .*none.json: No such file"):
        schema.read_manifest(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("path", "is_safe"),
    [
        ("a/b.c", True),
        (".pad", True),
        ("", False),
        ("/a", False),
        ("a//b", False),
        ("a/./b", False),
        ("a/../b", False),
        ("a/", False),
        ("a\\b", False),
        ("a\0b", False),
    ],
)
def test_only_plain_relative_paths_are_safe(path: str, is_safe: bool) -> None:
    assert schema.is_safe_path(path) is is_safe


def test_the_default_prefix_is_left_out_however_it_came() -> None:
    paths = {"shared": "s", "static": "a", "header": "h"}
    made = schema.Library(target="t", cpu="c", features=[], **paths)
    told = "".join(["aot", "lm"])  # equal, and another object
    given = schema.Library(target="t", cpu="c", features=[], **paths, prefix=told)
    assert schema.encode(given) == schema.encode(made)
    assert b"prefix" not in schema.encode(made)
    read = schema.decode(schema.encode(made)[:-3] + b', "prefix": "aotlm"}', schema.Library, "x")
    assert schema.encode(read) == schema.encode(made)
    other = schema.Library(target="t", cpu="c", features=[], **paths, prefix="qwen")
    assert b'"prefix": "qwen"' in schema.encode(other)
