"""Makes small bundles around a stub model with a tokenizer of bytes."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from aotlm_runtime.bundle import manifest as schema

USER, ASSISTANT, END = 256, 257, 258
VOCAB_SIZE = 264  # of the logits; the tokenizer has 259
WEIGHT = 3  # the first byte of the weights
CONTEXT = 200
BLOCK = 4096  # the smallest block of which a manifest can have digests
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose ids are bytes, with three special tokens behind them."""
    # GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    vocabulary = {characters[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|user|>", "<|assistant|>", "<|end|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def abi(**changes: object) -> schema.Abi:
    """The stub's ABI, with a digest that fits."""
    state = schema.StateTensor(
        name="tokens",
        layer=0,
        dtype="f32",
        shape=["C", 2],
        kind="appended",
        offset_bytes=schema.Bytes(),
        size_bytes=schema.Bytes(C=8),
        can_be_cut=True,
    )
    plain = schema.Abi(
        max_chunk_tokens=32,
        state=[state],
        state_bytes=schema.Bytes(C=8),
        prefill_workspace=schema.Bytes(T=16, threads=64),
        decode_workspace=schema.Bytes(const=16, threads=64),
        weights_size_bytes=4096,
        weights_layout_digest="0" * 64,
        error_codes={"1": "too many tokens", "2": "beyond the cache", "5": "a hole in the cache"},
        digest="",
    )
    changed = msgspec.structs.replace(plain, **changes)
    return msgspec.structs.replace(changed, digest=schema.abi_digest(changed))


def expected(ids: Sequence[int], n_tokens: int) -> list[int]:
    """What the stub continues `ids` with, up to `n_tokens` or its end."""
    total, found = sum(ids), list[int]()
    while len(found) < n_tokens and total * WEIGHT % 11:
        found.append(97 + total * WEIGHT % 26)
        total += found[-1]
    return found


def compile_stub(path: Path, of: schema.Abi, digest: str = "", /, **facts: int | str) -> None:
    """Compile the stub, with the digest of an ABI or another, into a shared library at `path`.

    `facts` are END_EVERY, DELAY_MICROSECONDS, WORKSPACE_PER_ROW, SCRIPT and PROMPT; see `stub.c`.
    """
    definitions = [f'-DDIGEST="{digest or of.digest}"', f"-DMAX_CHUNK={of.max_chunk_tokens}"]
    definitions.append(f"-DABI_VERSION={of.version}")
    definitions += [f"-D{name}={json.dumps(value)}" for name, value in facts.items()]
    source = str(Path(__file__).with_name("stub.c"))
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, *definitions, source, "-o", str(path)], check=True)


def write_bundle(
    folder: Path,
    stub: bytes,
    *,
    template: str | None = TEMPLATE,
    sampling: schema.Sampling | None = None,
    features: Sequence[str] = (),
    header_bytes: int = 4096,
) -> Path:
    """Write the folder form of a bundle around the library `stub`.

    The weight file has a header of `header_bytes` and 4096 bytes behind it.
    """
    files = {
        "lib/test/libaotlm_model.so": stub,
        "lib/test/libaotlm_model.a": b"!<arch>\n".ljust(2 * BLOCK + 1),
        "lib/test/include/aotlm_model.h": b"\n",
        "tokenizer/tokenizer.json": byte_tokenizer().to_str().encode(),
        "tokenizer/tokenizer_config.json": json.dumps({"eos_token": "<|end|>"}).encode(),
        "weights.safetensors": _weights(header_bytes),
    }
    if template is not None:
        files["tokenizer/chat_template.jinja"] = template.encode()
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    write_manifest(folder, files, features, sampling)
    return folder


def write_manifest(
    folder: Path,
    files: dict[str, bytes],
    features: Sequence[str] = (),
    sampling: schema.Sampling | None = None,
) -> None:
    """Write the manifest of a folder whose files are `files`."""
    record = schema.Manifest(
        model=model_facts(sampling=sampling or msgspec.UNSET),
        abi=abi(),
        libraries=[
            schema.Library(
                target="test",
                cpu="x86-64",
                features=list(features),
                shared="lib/test/libaotlm_model.so",
                static="lib/test/libaotlm_model.a",
                header="lib/test/include/aotlm_model.h",
            )
        ],
        tokenizer_files=sorted(path for path in files if path.startswith("tokenizer/")),
        toolchain={},
        source_tensors=[],
        block_size_bytes=BLOCK,
        files=[_file(path, files[path]) for path in sorted(files)],
    )
    (folder / "manifest.json").write_bytes(schema.encode(record))


def damage(folder: Path, offset: int, path: str = "weights.safetensors", byte: int = 0xFF) -> None:
    """Set one byte of a file to another value."""
    with (folder / path).open("r+b") as file:
        file.seek(offset)
        file.write(bytes([byte]))


def as_format1(folder: Path) -> Path:
    """Turn a bundle into one of format 1: no blocks, another form of the state, another stub."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["block_size_bytes"]
    of = manifest["abi"]
    del of["digest"]
    of["version"], of["state_bytes_per_position"] = 1, of.pop("state_bytes")["C"]
    for tensor in of["state"]:
        del tensor["kind"]
        tensor["rewindable"] = tensor.pop("can_be_cut")
        for name in ("offset_bytes", "size_bytes"):
            tensor[f"{name}_per_position"] = tensor.pop(name)["C"]
    canonical = json.dumps(of, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    of["digest"] = hashlib.sha256(canonical).hexdigest()
    library = folder / "lib/test/libaotlm_model.so"
    compile_stub(library, abi(version=1), of["digest"])
    for file in manifest["files"]:
        file.pop("block_blake3", None)
        if file["path"] == "lib/test/libaotlm_model.so":
            file["size_bytes"] = library.stat().st_size
            file["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
    path.write_text(json.dumps({**manifest, "format_version": 1}))
    return folder


def model_facts(**changes: object) -> schema.Model:
    """The stub's facts."""
    facts = schema.Model(
        source="local",
        revision=None,
        licence=None,
        architecture="Stub",
        dtype="f32",
        n_parameters=1,
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=2,
        hidden_size=2,
        vocab_size=VOCAB_SIZE,
        context_length=CONTEXT,
        bos_token_id=None,
        eos_token_ids=[END],
    )
    return msgspec.structs.replace(facts, **changes)


Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], Iterable[tuple[tarfile.TarInfo, bytes]]]


def write_tar(folder: Path, path: Path, change: Change = lambda members: members) -> Path:
    """Write the archive form of a bundle's folder; `change` may spoil its members before."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    names.sort(key=lambda name: name == "weights.safetensors")
    members = [member(name, (folder / name).read_bytes()) for name in names]
    before = sum(512 + -(-len(data) // 512) * 512 for _, data in members[:-1])
    members.insert(-1, member(".pad", bytes(-(before + 1024) % 4096)))
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for info, data in change(members):
            archive.addfile(info, io.BytesIO(data))
    return path


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> tuple[tarfile.TarInfo, bytes]:
    """One member of an archive."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    return info, data


def _weights(header_bytes: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}})
    padded = header.encode().ljust(header_bytes - 8)
    return len(padded).to_bytes(8, "little") + padded + bytes([WEIGHT] * 4096)


def _file(path: str, data: bytes) -> schema.File:
    blocks = [data[begin : begin + BLOCK] for begin in range(0, len(data), BLOCK)]
    return schema.File(
        path=path,
        size_bytes=len(data),
        sha256=sha256(data),
        block_blake3=[blake3(block).hexdigest() for block in blocks[1:] and blocks],
    )


def sha256(data: bytes) -> str:
    """The digest in hex."""
    return hashlib.sha256(data).hexdigest()
