"""The chat templates of a model: which one is used, and what it writes behind an answer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

from aotlm.capture.source import ModelSource
from aotlm.errors import UsageError

DEFAULT: Final = "default"
TOOLS: Final = "tool_use"
ANSWER: Final = "aotlm answers"  # no template changes it
GGUF_KEY: Final = "tokenizer.chat_template"


@dataclass(frozen=True)
class Templates:
    """The template of chats and that of tools; `note` says what is missing, where something is."""

    chat: str | None
    tools: str | None = None
    note: str | None = None


def choose_templates(source: ModelSource) -> Templates:
    """Return the templates that the bundle gets.

    Raises:
        UsageError: the template that was asked for does not exist.
    """
    known = _named(source)
    if source.template is not None and source.template not in known:
        offered = f"it has {', '.join(sorted(known))}" if known else "it has none at all"
        raise UsageError(f"the model has no chat template {source.template}; {offered}")
    chat = known.get(source.template or DEFAULT)
    tools = known.get(TOOLS) if source.template != TOOLS else None
    return Templates(chat, tools, None if chat else _missing(sorted(known)))


def _missing(names: list[str]) -> str:
    if not names:
        return "note: the model has no chat template, so it only continues text"
    return (
        f"note: the model has the chat templates {', '.join(names)} and none of them is the "
        "default, so it only continues text; choose one with --template NAME"
    )


def _named(source: ModelSource) -> dict[str, str]:
    if source.gguf is not None:
        found = {
            key.removeprefix(GGUF_KEY).removeprefix(".") or DEFAULT: text
            for key, text in source.gguf.metadata.items()
            if key == GGUF_KEY or key.startswith(f"{GGUF_KEY}.")
        }
        return found if source.tokenizer is not None else {}
    template = getattr(source.tokenizer, "chat_template", None)
    if isinstance(template, dict):
        return template
    return {DEFAULT: template} if isinstance(template, str) else {}


def end_of_turn(source: ModelSource) -> int | None:
    """Return the id of the token that the chat template writes behind an assistant's message."""
    template, tokenizer = choose_templates(source).chat, source.tokenizer
    rendered = _rendered(tokenizer, template) if template else ""
    behind = rendered.rpartition(ANSWER)[2].lstrip() if ANSWER in rendered else ""
    added = tokenizer.get_added_vocab() if behind else {}
    fitting = [token for token in added if behind.startswith(token)]
    return added[max(fitting, key=len)] if fitting else None


def _rendered(tokenizer: Any, template: str) -> str:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    with contextlib.suppress(Exception):  # a template may refuse whatever it likes
        return str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False))
    return ""
