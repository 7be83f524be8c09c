"""A model of forty lines: the next token is always the last one plus one, modulo eight."""

import hashlib
import json
from pathlib import Path

import pytest

from aotlm.support.build_record import build_record, write_build_record
from aotlm_runtime.bundle.manifest import Abi, Bytes, File, Model, ModelFile, abi_digest, encode

VOCABULARY = 8

_FORWARD = """
func.func private @layer_KIND(memref<1x?xi64>, memref<1x?x8xf32>)
func.func @forward_KIND(
    %weights: memref<?xi8>, %tokens: memref<1x?xi64>, %positions: memref<1xi64>,
    %context_length: i64, %state: memref<1x?xi8>, %workspace: memref<?xi8>,
    %logits: memref<1x?x8xf32>
) -> i32 attributes {llvm.emit_c_interface} {
  func.call @layer_KIND(%tokens, %logits) : (memref<1x?xi64>, memref<1x?x8xf32>) -> ()
  %ok = arith.constant 0 : i32
  return %ok : i32
}
"""

_LAYER = """
func.func @layer_KIND(%tokens: memref<1x?xi64>, %logits: memref<1x?x8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %no = arith.constant 0.0 : f32
  %yes = arith.constant 1.0 : f32
  %R = memref.dim %logits, %c1 : memref<1x?x8xf32>
  %T = memref.dim %tokens, %c1 : memref<1x?xi64>
  %skip = arith.subi %T, %R : index
  scf.parallel (%r) = (%c0) to (%R) step (%c1) {
    %t = arith.addi %r, %skip : index
    %word = memref.load %tokens[%c0, %t] : memref<1x?xi64>
    %last = arith.index_cast %word : i64 to index
    %plus = arith.addi %last, %c1 : index
    %next = arith.remui %plus, %c8 : index
    scf.for %v = %c0 to %c8 step %c1 {
      %hit = arith.cmpi eq, %v, %next : index
      %logit = arith.select %hit, %yes, %no : f32
      memref.store %logit, %logits[%c0, %r, %v] : memref<1x?x8xf32>
    }
  }
  return
}
"""


def write_import(out: Path, layout: str = "ab") -> ModelFile:
    """Write `out/import` as `inv import` would, and return its model.json."""
    imported = out / "import"
    (imported / "tokenizer").mkdir(parents=True, exist_ok=True)
    for kind in ("prefill", "decode"):
        for name, text in (("forward", _FORWARD), ("subgraph0", _LAYER)):
            (imported / f"{name}_{kind}.mlir").write_text(text.replace("KIND", kind))
    metadata = {"__metadata__": {"layout_digest": layout * 32}}
    header = json.dumps(metadata).encode().ljust(4096 - 8)
    weights = len(header).to_bytes(8, "little") + header + bytes(64)
    (imported / "weights.safetensors").write_bytes(weights)
    (imported / "tokenizer" / "tokenizer.json").write_text("{}\n")
    model = ModelFile(
        model=_model(),
        abi=_abi(layout),
        tokenizer_files=["tokenizer.json"],
        source_tensors=[],
        toolchain={"python": "3.11"},
        files=[_file(imported, p) for p in ("tokenizer/tokenizer.json", "weights.safetensors")],
    )
    (imported / "model.json").write_bytes(encode(model))
    write_build_record(build_record("import", ["by hand"]), imported)
    return model


def leave_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model has no kernels to fill in."""
    import aotlm.kernels

    monkeypatch.setattr(
        aotlm.kernels, "define_kernels", lambda path, target: path.read_text(), raising=False
    )


def _model() -> Model:
    return Model(
        source="handwritten",
        revision=None,
        licence=None,
        architecture="Counter",
        dtype="f32",
        n_parameters=0,
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        hidden_size=1,
        vocab_size=VOCABULARY,
        context_length=2048,
        bos_token_id=None,
        eos_token_ids=[7],
    )


def _abi(layout: str) -> Abi:
    def abi(digest: str) -> Abi:
        return Abi(
            state=[],
            state_bytes=Bytes(C=16),
            prefill_workspace=Bytes(const=64, T=4, threads=8),
            decode_workspace=Bytes(const=128),
            weights_size_bytes=64,
            weights_layout_digest=layout * 32,
            error_codes={"1": "T is larger than 512", "2": "the workspace is too small"},
            digest=digest,
        )

    return abi(abi_digest(abi("")))


def _file(folder: Path, path: str) -> File:
    data = (folder / path).read_bytes()
    return File(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
