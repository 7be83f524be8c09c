"""The schema of `manifest.json` and `model.json`; the compiler imports it from here.

Decoding is strict: an unknown field, a missing one or a wrong type is an error. All JSON that is
written has sorted keys, two spaces of indent and a final newline.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from aotlm_runtime.bundle import format1
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX
from aotlm_runtime.errors import ManifestInvalidError

FORMAT_VERSION = 2
BLOCK_SIZE_BYTES = 1 << 22
# A manifest is read before anything about it is known; none comes near this.
MAX_MANIFEST_BYTES = 1 << 26
_BLOCK_ALIGNMENT_BYTES = 4096


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of everything that is stored as JSON."""


class Bytes(Record, frozen=True, kw_only=True):
    """A size in bytes, linear in the sizes of a call: const + T·x + R·x + C·x + threads·x.

    T is the tokens of the call, R the rows of logits, C the positions of the cache.
    """

    const: int = 0
    T: int = 0
    R: int = 0
    C: int = 0
    threads: int = 0

    def at(self, T: int = 0, R: int = 0, C: int = 0, threads: int = 0) -> int:
        """Return the size in bytes for these sizes."""
        return self.const + self.T * T + self.R * R + self.C * C + self.threads * threads


class StateTensor(Record, frozen=True, kw_only=True):
    """One tensor of the state; its offset and size are linear in C.

    `shape` holds ints and expressions in C ("C/64"); `dtype` is f32, f16 or bf16. `kind` says how
    calls write it: "appended", each position at its own place. What can be cut needs no repair when
    a session goes back to an earlier position, and another can take its first positions over.
    """

    name: str
    layer: int
    kind: Literal["appended"]
    dtype: str
    shape: list[int | str]
    offset_bytes: Bytes
    size_bytes: Bytes
    can_be_cut: bool


class Abi(Record, frozen=True, kw_only=True):
    """What the entry points take: the caller owns every buffer and sizes it from this.

    `weights_size_bytes` is the size of the weight file's data section; `error_codes` maps what the
    entry points return (as decimal text) to a sentence; `digest` is `abi_digest` of this. Version 1
    had no context length among the arguments: it was told from the state's size.
    """

    version: int = 2
    prefill: str = "_mlir_ciface_forward_prefill"
    decode: str = "_mlir_ciface_forward_decode"
    batch: int = 1
    max_chunk_tokens: int = 512
    position_block: int = 64
    state: list[StateTensor]
    state_bytes: Bytes
    prefill_workspace: Bytes
    decode_workspace: Bytes
    weights_size_bytes: int
    weights_layout_digest: str
    error_codes: dict[str, str]
    digest: str


class StoredWeights(Record, frozen=True, kw_only=True):
    """The weights that one codec stores: how many numbers, in how many bytes."""

    codec: str
    n_values: int
    size_bytes: int


class Sampling(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the publisher of a model has its answers made; None is what they do not say.

    The names are those of the options that the runtime has.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None


class Model(Record, frozen=True, kw_only=True):
    """The facts about a model; `vocab_size` is the width of a row of logits.

    `dtype` names the policy that chose each weight's codec; `weights` says what came of it.
    There is no `sampling` where the publisher says nothing of it.
    """

    source: str
    revision: str | None
    licence: str | None
    architecture: str
    dtype: str
    n_parameters: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_length: int
    bos_token_id: int | None
    eos_token_ids: list[int]
    weights: list[StoredWeights] = []
    sampling: Sampling | msgspec.UnsetType = msgspec.UNSET


class SourceTensor(Record, frozen=True, kw_only=True):
    """A tensor of the checkpoint that a model was made from."""

    name: str
    dtype: str
    shape: list[int]
    sha256: str


class File(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A file; `path` is relative, with forward slashes.

    `block_blake3` has the digest of each block of the manifest's `block_size_bytes`, the last of
    which may be shorter, so that they can be compared side by side; a small file has none.
    """

    path: str
    size_bytes: int
    sha256: str
    block_blake3: list[str] = []


class Library(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The compiled model for one kind of CPU.

    `features` are flag names as archspec has them; `prefix` is what the names of the library's
    functions begin with, see `symbols.with_prefix`.
    """

    target: str
    cpu: str
    features: list[str]
    shared: str
    static: str
    header: str
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        """Leave the default prefix out of JSON, however it came: defaults are told by identity."""
        if self.prefix == DEFAULT_PREFIX:
            msgspec.structs.force_setattr(self, "prefix", DEFAULT_PREFIX)


class ModelFile(Record, frozen=True, kw_only=True):
    """`model.json`: what the stages after import need to know.

    `error_names` maps codes of the ABI (as decimal text) to what C calls them.
    """

    format_version: int = FORMAT_VERSION
    model: Model
    abi: Abi
    tokenizer_files: list[str]
    source_tensors: list[SourceTensor]
    toolchain: dict[str, str]
    files: list[File]
    error_names: dict[str, str] = msgspec.field(default_factory=dict)


class Manifest(Record, frozen=True, kw_only=True):
    """`manifest.json` of a bundle; `files` lists every file but itself, sorted by path.

    `block_size_bytes` holds for all of them; format 1 had no blocks.
    """

    format_version: int = FORMAT_VERSION
    model: Model
    abi: Abi
    libraries: list[Library]
    weights: str = "weights.safetensors"
    tokenizer_files: list[str]
    toolchain: dict[str, str]
    source_tensors: list[SourceTensor]
    block_size_bytes: int = 0
    files: list[File]


class _Version(msgspec.Struct):
    format_version: int


_Record = TypeVar("_Record", bound=Record)


def encode(record: Record) -> bytes:
    """Return the JSON text of a record, the same bytes for equal records."""
    compact = msgspec.json.encode(record, order="sorted")
    return msgspec.json.format(compact, indent=2) + b"\n"


def decode(data: bytes, kind: type[_Record], name: str) -> _Record:
    """Return the record that JSON text holds; `name` says in errors where the text is from.

    Raises:
        ManifestInvalidError: the text is not JSON, or not exactly of this kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestInvalidError(
            f"{name} is not a valid {_words(kind)}: {error}; "
            "it was edited or made by another version, so get the file again"
        ) from error


def abi_digest(abi: Abi) -> str:
    """Return the sha256, in hex, of the canonical JSON of all fields of `abi` but `digest`.

    Canonical: keys sorted, no spaces, UTF-8, integers in decimal.
    """
    fields = msgspec.to_builtins(abi)
    del fields["digest"]
    return _digest(fields)


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Return the bundle manifest in the file `path`.

    Raises:
        ManifestInvalidError: the file cannot be read, is no manifest, or contradicts itself.
    """
    return decode_manifest(_read(path), str(path))


def read_manifest_at(fd: int, offset: int, size_bytes: int, name: str) -> Manifest:
    """Return the bundle manifest in these bytes of an open file; see `read_manifest`."""
    if size_bytes > MAX_MANIFEST_BYTES:
        raise ManifestInvalidError(
            f"{name} has {size_bytes} bytes, but at most {MAX_MANIFEST_BYTES} are read; "
            "get the bundle again"
        )
    return decode_manifest(os.pread(fd, size_bytes, offset), name)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest that `data` holds, checked against itself; see `read_manifest`.

    One of format 1 is returned in today's form.
    """
    if decode_version(data, name) == format1.VERSION:
        manifest = _decode_format1(data, name)
    else:
        _check_version(data, name)
        manifest = decode(data, Manifest, name)
        _check_digest(manifest.abi.digest, abi_digest(manifest.abi), name)
    _check_paths(manifest, name)
    _check_blocks(manifest, name)
    return manifest


def read_model_file(path: Path) -> ModelFile:
    """Return the `model.json` at `path`.

    Raises:
        ManifestInvalidError: the file cannot be read, is no such file, or contradicts itself.
    """
    data = _read(path)
    _check_version(data, str(path))
    model_file = decode(data, ModelFile, str(path))
    _check_digest(model_file.abi.digest, abi_digest(model_file.abi), str(path))
    return model_file


def is_safe_path(path: str) -> bool:
    """Say whether `path` is relative, normal, with forward slashes, and stays in its folder."""
    parts = path.split("/")
    printable = path.isprintable() and "\\" not in path
    return printable and all(part not in ("", ".", "..") for part in parts)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ManifestInvalidError(
            f"cannot read {path}: {error.strerror}; give the folder or archive that holds it"
        ) from error


def _words(kind: type[Record]) -> str:
    return {"Manifest": "manifest", "ModelFile": "model description"}.get(
        kind.__name__, kind.__name__
    )


def _check_version(data: bytes, name: str) -> None:
    version = decode_version(data, name)
    if version != FORMAT_VERSION:
        raise ManifestInvalidError(
            f"{name} has format version {version}, but this program reads version "
            f"{FORMAT_VERSION}; use the release of aotlm that made it"
        )


def decode_version(data: bytes, name: str) -> int:
    """Return the format version alone, so that files of other versions are named as such."""
    try:
        return msgspec.json.decode(data, type=_Version).format_version
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestInvalidError(
            f"{name} has no readable format version: {error}; get the file again"
        ) from error


def _check_digest(stated: object, digest: str, name: str) -> None:
    if stated != digest:
        raise ManifestInvalidError(
            f"{name} was edited: its ABI has the digest {digest}, but it states {stated}; "
            "get the file again"
        )


def _decode_format1(data: bytes, name: str) -> Manifest:
    try:
        found = msgspec.json.decode(data)
        abi = dict(found["abi"])
        manifest = msgspec.convert(format1.upgraded(found), Manifest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ManifestInvalidError(
            f"{name} is not a valid manifest of format {format1.VERSION}: {error}; "
            "it was edited, so get the file again"
        ) from error
    _check_digest(abi.pop("digest"), _digest(abi), name)
    return manifest


def _check_paths(manifest: Manifest, name: str) -> None:
    listed = [file.path for file in manifest.files]
    unsafe = [path for path in listed if not is_safe_path(path)]
    if unsafe:
        raise ManifestInvalidError(
            f"{name} lists the path {unsafe[0]!r}, which is not a plain relative path; "
            "do not use this bundle"
        )
    if listed != sorted(set(listed)):
        raise ManifestInvalidError(
            f"{name} lists its files twice or out of order; make the bundle again"
        )
    libraries = [
        path for lib in manifest.libraries for path in (lib.shared, lib.static, lib.header)
    ]
    for path in (manifest.weights, *manifest.tokenizer_files, *libraries):
        if path not in listed:
            raise ManifestInvalidError(
                f"{name} uses the file {path!r} but does not list it; make the bundle again"
            )


def _check_blocks(manifest: Manifest, name: str) -> None:
    size = manifest.block_size_bytes
    divided = [file for file in manifest.files if file.block_blake3]
    if divided and (size <= 0 or size % _BLOCK_ALIGNMENT_BYTES):
        raise ManifestInvalidError(
            f"{name} has digests of blocks of {size} bytes, but a block must have a multiple of "
            f"{_BLOCK_ALIGNMENT_BYTES}; make the bundle again"
        )
    for file in divided:
        wanted = -(-file.size_bytes // size)
        if len(file.block_blake3) != wanted:
            raise ManifestInvalidError(
                f"{name} has {len(file.block_blake3)} digests of blocks for {file.path!r}, but its "
                f"{file.size_bytes} bytes are {wanted} blocks of {size}; make the bundle again"
            )
