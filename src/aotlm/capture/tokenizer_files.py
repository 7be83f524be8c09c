"""What the runtime needs of a tokenizer: its files, the chat template, and the ids that end a text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aotlm.capture.source import ModelSource

# Keys of tokenizer_config.json that say something about the text, not about a machine.
KEPT_KEYS: Final = (
    "add_bos_token", "add_eos_token", "bos_token", "clean_up_tokenization_spaces", "eos_token",
    "model_max_length", "pad_token", "unk_token",
)  # fmt: skip


def _token(value: Any) -> Any:
    return getattr(value, "content", value)


def write_tokenizer_files(source: ModelSource, folder: Path) -> list[str]:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into the folder.

    Returns the names written, sorted; none where the model has no tokenizer.
    """
    tokenizer = source.tokenizer()
    if tokenizer is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["truncation"] = backend["padding"] = None
    _write(folder / "tokenizer.json", backend, sort=False)
    values = {key: _token(getattr(tokenizer, key, None)) for key in KEPT_KEYS}
    _write(folder / "tokenizer_config.json",
           {key: value for key, value in values.items() if value is not None}, sort=True)  # fmt: skip
    if isinstance(tokenizer.chat_template, str):
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())


def _write(path: Path, content: Any, sort: bool) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=sort)
    path.write_text(text + "\n", encoding="utf-8")


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def eos_token_ids(source: ModelSource) -> list[int]:
    """Return the sorted union of config's, generation config's and the tokenizer's EOS ids."""
    holders = (source.config, source.generation_config(), source.tokenizer())
    found = [id_ for holder in holders for id_ in _ids(getattr(holder, "eos_token_id", None))]
    return sorted(set(found))


def bos_token_id(source: ModelSource) -> int | None:
    """Return the id that starts a text, None where there is none."""
    for holder in (source.tokenizer(), source.config):
        value = getattr(holder, "bos_token_id", None)
        if isinstance(value, int):
            return value
    return None
