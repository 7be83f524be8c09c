"""The tokenizer of a GGUF file: how text is split before merges, which transformers half knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    GGUF_SENTENCEPIECE_BUILDERS,
)

from aotlm.errors import AotlmError

NO_MODEL: Final = (None, "none", "no_vocab")
MODELS: Final = ("gpt2", "llama")  # byte-level BPE, sentencepiece


@dataclass(frozen=True)
class Split:
    """How text is cut before merges: by a pattern, or GPT-2's; with `digits`, each digit first.

    With `ignores_merges`, a whole piece that is a token needs no merges; `adds_bos` is what holds
    where the file does not say; `is_composed`: text is brought to Unicode's form NFC first.
    """

    pattern: str | None = None
    digits: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False
    is_composed: bool = False


_LLAMA3: Final = Split(GGUF_PRE_TOKENIZER_SPLITS["llama3"], ignores_merges=True, adds_bos=True)
_QWEN2: Final = Split(GGUF_PRE_TOKENIZER_SPLITS["qwen2"])

# llama.cpp's names (llama-vocab.cpp).
SPLITS: Final[Mapping[str, Split]] = {
    **dict.fromkeys(("gpt-2", "jais", "mellum", "mpt", "olmo", "phi-2", "trillion"), Split()),
    **dict.fromkeys(("codeshell", "command-r", "refact", "smollm", "starcoder"),
                    Split(digits=True)),
    **dict.fromkeys(("falcon3", "llama-bpe", "llama-v3", "llama3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Split(_LLAMA3.pattern)),
    "qwen2": Split(_QWEN2.pattern, is_composed=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2),
    "tekken": Split(GGUF_PRE_TOKENIZER_SPLITS["tekken"], ignores_merges=True, adds_bos=True),
    "gpt-4o": Split(GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"]),
}  # fmt: skip


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """Say whether the file holds a tokenizer.

    Raises:
        AotlmError: one of a kind that is unknown, or that cuts text in a way that is unknown.
    """
    model, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model in NO_MODEL:
        return False
    if model not in MODELS:
        raise AotlmError(
            f"the file's tokenizer.ggml.model is {model}; known are {' and '.join(MODELS)}, so "
            "import the model's safetensors"
        )
    if model == "gpt2" and pre not in SPLITS:
        said = f"is {pre}" if pre else "is missing"
        raise AotlmError(
            f"the file's tokenizer.ggml.pre {said}, so how its tokenizer cuts text is unknown; "
            f"known are {', '.join(sorted(SPLITS))}, so import the model's safetensors, or a file "
            "that was converted anew"
        )
    return True


def correct(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Give the transformers tokenizer of the file what its metadata asks for."""
    backend = tokenizer.backend_tokenizer
    if metadata["tokenizer.ggml.model"] == "llama":
        is_plain = metadata["general.architecture"] not in GGUF_SENTENCEPIECE_BUILDERS
        if is_plain and not metadata.get("tokenizer.ggml.add_space_prefix", True):
            backend.pre_tokenizer = pre_tokenizers.Metaspace(
                "▁", prepend_scheme="never", split=False
            )
            backend.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
            )
        return
    split = SPLITS[metadata["tokenizer.ggml.pre"]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(_steps(split))
    backend.model.ignore_merges = split.ignores_merges
    if split.is_composed:
        backend.normalizer = normalizers.NFC()
    if "tokenizer.ggml.add_bos_token" not in metadata and split.adds_bos:
        tokenizer.add_bos_token = True


def _steps(split: Split) -> list[Any]:
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None)
    if split.pattern is not None:
        return [pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"), bytes_]
    return [pre_tokenizers.Digits(individual_digits=True), bytes_] if split.digits else [bytes_]
