"""The fields of a request: which are honoured, which are refused, which have no effect.

A field of a request's class in `schemas` is honoured. Every other field that clients are known to
send is in one of the tables here. What nobody knows is named in a header, or refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from aotlm_runtime.server.api_errors import ApiError

IGNORED_HEADER = "X-Aotlm-Ignored"

# Field -> the values, besides null, that ask for nothing. Any other value is refused.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "grammar": ("",),
    "json_schema": ({},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    "documents": ([],),
    "chat_template": (),
}

# Notes for whoever keeps accounts, and hints that change no answer.
WITHOUT_EFFECT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
)

# A header has to stay short: so many names, of so many characters each.
_MAX_NAMES, _MAX_CHARACTERS = 16, 64


def honoured(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a class of requests."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def refuse_unsupported(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    """Refuse the fields that ask for what this server cannot do.

    Raises:
        ApiError: there is one; it is named.
    """
    own = honoured(kind)
    for name, neutral in UNSUPPORTED.items():
        value = body.get(name)
        if name not in own and value is not None and value not in neutral:
            shown = msgspec.json.encode(value).decode()[:80]
            raise ApiError(400, f"{name} is {shown}, which this server cannot do; leave it out",
                          param=name)  # fmt: skip


def unknown(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of fields that nothing here knows, also within messages; each once."""
    known = (*UNSUPPORTED, *WITHOUT_EFFECT)
    return list(dict.fromkeys(name for name in _unknown(body, kind) if name not in known))


def _unknown(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[str]:
    own = honoured(kind)
    nested: Mapping[str, type[msgspec.Struct]] = getattr(kind, "NESTED", {})
    for name, value in body.items():
        if name not in own:
            yield name
        elif name in nested:
            mark = "[]" if isinstance(value, list) else ""
            items = value if isinstance(value, list) else [value]
            for item in items:
                if isinstance(item, dict):
                    yield from (f"{name}{mark}.{inner}" for inner in _unknown(item, nested[name]))


def header(names: Iterable[str]) -> dict[str, str]:
    """Return the header that names what was ignored; none if nothing was."""
    shown = [quote(name[:_MAX_CHARACTERS], safe="[]") for name in names]
    if not shown:
        return {}
    more = [f"and {len(shown) - _MAX_NAMES} more"] if len(shown) > _MAX_NAMES else []
    return {IGNORED_HEADER: ", ".join([*shown[:_MAX_NAMES], *more])}
