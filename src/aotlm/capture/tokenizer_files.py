"""What the runtime needs of a tokenizer: its files, and the ids that start and end a text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aotlm.capture.source import ModelSource
from aotlm.capture.templates import choose_templates, end_of_turn
from aotlm.errors import AotlmError

CHAT_TEMPLATE: Final = "chat_template.jinja"
TOOL_TEMPLATE: Final = "chat_template.tool_use.jinja"

# The kinds that chat templates may name.
SPECIAL_TOKENS: Final = (
    "bos_token", "cls_token", "eos_token", "pad_token", "sep_token", "unk_token",
)  # fmt: skip


def write_tokenizer_files(source: ModelSource, folder: Path) -> list[str]:
    """Write tokenizer.json, tokenizer_config.json and, where there are any, the chat templates.

    Returns the names written, sorted; none where the model has no tokenizer. The files hold
    nothing that depends on where the model lay.

    Raises:
        AotlmError: the tokenizer exists in Python code only.
    """
    tokenizer = source.tokenizer
    if tokenizer is None:
        return []
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise AotlmError(
            f"the tokenizer of {source.folder} ({type(tokenizer).__name__}) has no tokenizer.json "
            "form, which the runtime needs; choose a model with a fast tokenizer"
        )
    files = {
        "tokenizer.json": _json({**json.loads(backend.to_str()), "truncation": None,
                                 "padding": None}, sort_keys=False),
        "tokenizer_config.json": _json(_special_tokens(tokenizer), sort_keys=True),
    }  # fmt: skip
    templates = choose_templates(source)
    files |= {
        name: text
        for name, text in ((CHAT_TEMPLATE, templates.chat), (TOOL_TEMPLATE, templates.tools))
        if text is not None
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    return sorted(files)


def eos_token_ids(source: ModelSource) -> list[int]:
    """Return the sorted ids that end an answer: all that anything of the model says.

    These are the configuration's, the generation configuration's, the tokenizer's, a GGUF file's
    ends of a turn and of a message, and what the chat template writes behind an answer.
    """
    metadata = source.gguf.metadata if source.gguf else {}
    values = (
        getattr(source.config, "eos_token_id", None),
        source.generation_config.get("eos_token_id"),
        getattr(source.tokenizer, "eos_token_id", None),
        *(metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eot", "eom")),
        end_of_turn(source),
    )
    return sorted({token for value in values for token in _ids(value)})


def bos_token_id(source: ModelSource) -> int | None:
    """Return the id that starts a text; None where there is none."""
    values = (
        getattr(source.tokenizer, "bos_token_id", None),
        source.generation_config.get("bos_token_id"),
        getattr(source.config, "bos_token_id", None),
    )
    return next((value for value in values if isinstance(value, int)), None)


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _special_tokens(tokenizer: Any) -> dict[str, str]:
    values = {kind: getattr(tokenizer, kind, None) for kind in SPECIAL_TOKENS}
    return {kind: str(value) for kind, value in values.items() if value is not None}


def _json(content: Any, sort_keys: bool) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1, sort_keys=sort_keys) + "\n"
