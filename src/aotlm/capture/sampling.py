"""How the publisher of a model has its answers made: generation_config.json, or a GGUF file's keys.

What the runtime can do goes into the manifest; every other key is in a table here, or unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from aotlm.errors import AotlmError
from aotlm_runtime.bundle.manifest import Sampling
from aotlm_runtime.errors import OptionInvalidError
from aotlm_runtime.generate.stream import DEFAULT, changed

GENERATION_CONFIG: Final = "generation_config.json"
DRAWS: Final = "do_sample"

# transformers' name → the manifest's
FIELDS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop",
}
GGUF_FIELDS: Final[Mapping[str, str]] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
}
# The manifest's names of what only counts where tokens are drawn.
DRAWN: Final = ("temperature", "top_k", "top_p", "min_p")
DRAWN_TEMPERATURE: Final = 1.0  # where tokens are drawn and nothing says how: transformers' own

# What other files of the capture read.
ELSEWHERE: Final = ("bos_token_id", "eos_token_id", DRAWS)

# A pattern of keys → why they change no answer.
HARMLESS: Final[Mapping[str, str]] = {
    "pad_token_id": "one sequence needs no padding",
    "decoder_start_token_id": "for models with an encoder",
    "transformers_version|_from_model_config|_commit_hash|_name_or_path": "where the file is from",
    "use_cache|cache_implementation|cache_config|max_cache_len|prefill_chunk_size|low_memory"
    "|compile_config|disable_compile|continuous_batching_config":
        "how transformers computes, not what",
    "output_(attentions|hidden_states|scores|logits)|return_dict_in_generate":
        "what transformers returns besides the tokens",
    "is_assistant|num_assistant_tokens(_schedule)?|assistant_(confidence_threshold|early_exit"
    "|lookbehind)|target_lookbehind|prompt_lookup_num_tokens|max_matching_ngram_size"
    "|speculation_type|use_mtp": "guesses that transformers checks, so they change no token",
    "renormalize_logits": "the runtime's probabilities add up to one anyway",
    "remove_invalid_values": "the runtime refuses logits that are no numbers",
}  # fmt: skip

# A key that changes answers in a way that the runtime does not have → the values that ask for
# nothing.
UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "max_length": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "early_stopping": (False,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "length_penalty": (1,),
    "num_return_sequences": (1,),
    "constraints": ([],),
    "force_words_ids": ([],),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "token_healing": (False,),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "assistant_ensemble_weight": (),
}
GGUF_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "general.sampling.sequence": (),
    "general.sampling.xtc_probability": (0,),
    "general.sampling.xtc_threshold": (0,),
    "general.sampling.penalty_last_n": (-1,),  # all of the context, as here
    "general.sampling.mirostat": (0,),
    "general.sampling.mirostat_tau": (0,),
    "general.sampling.mirostat_eta": (0,),
}
BEYOND: Final = "the runtime does not have it, so answers may differ from the publisher's"


@dataclass(frozen=True)
class Published:
    """What the publisher recommends and the runtime can do; `notes` say what is not used."""

    sampling: Sampling
    notes: tuple[str, ...] = ()


def published_sampling(config: Mapping[str, Any], name: str = GENERATION_CONFIG) -> Published:
    """Return what transformers' generation configuration, in the file `name`, asks for.

    As there, tokens are drawn only with `do_sample`; where that is not said, a temperature says it.

    Raises:
        AotlmError: a value cannot be.
    """
    said = {key: value for key, value in config.items() if value is not None}
    draws = said.get(DRAWS, said.get("temperature") is not None)
    if not isinstance(draws, bool):
        raise AotlmError(f"{name} says {DRAWS} {draws!r}, wanted is true or false; correct it")
    values = _values(said, FIELDS, name)
    idle = {key: field for key, field in FIELDS.items() if field in DRAWN and key in said}
    if draws:
        values.setdefault("temperature", DRAWN_TEMPERATURE)
    else:
        values = {field: value for field, value in values.items() if field not in DRAWN}
    kinds = {
        f"{DRAWS} is {'false' if DRAWS in said else 'missing'}": [] if draws else sorted(idle),
        **_harmless(said),
        BEYOND: _asking(said, UNSUPPORTED),
        "it is not known here": sorted(set(said) - _known(said)),
    }
    return Published(_sampling(values), _notes(name, kinds))


def published_gguf_sampling(metadata: Mapping[str, Any], name: str) -> Published:
    """Return what the metadata of the GGUF file `name` asks for.

    llama.cpp's converter copies generation_config.json, but for whether tokens are drawn: they are
    where the file says how.

    Raises:
        AotlmError: a value cannot be.
    """
    short = {key: _shortest(metadata[key]) for key in GGUF_FIELDS if key in metadata}
    values = _values(short, GGUF_FIELDS, name)
    if any(field in values for field in DRAWN):
        values.setdefault("temperature", DRAWN_TEMPERATURE)
    return Published(_sampling(values), _notes(name, {BEYOND: _asking(metadata, GGUF_UNSUPPORTED)}))


def generation_keys() -> tuple[str, ...]:
    """Return the keys that say how answers are made, by which a config.json may say it, too."""
    return (*FIELDS, DRAWS, *UNSUPPORTED)


def _values(said: Mapping[str, Any], fields: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return what is said of the fields, by the manifest's names and checked one by one."""
    values = {}
    for key, field in fields.items():
        if key in said:
            value = said[key]
            if field == "stop":
                value = [value] if isinstance(value, str) else value
            try:
                changed(DEFAULT, {field: value})
                msgspec.convert({field: value}, Sampling)
            except (OptionInvalidError, msgspec.ValidationError) as error:
                raise AotlmError(
                    f"{name} says {key} {_shown(said[key])}, which cannot be: {error}; correct it, "
                    "or take the line out"
                ) from error
            values[field] = value
    return values


def _shortest(value: Any) -> Any:
    """Return an f32 as it was written: 0.6, not 0.6000000238."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _sampling(values: Mapping[str, Any]) -> Sampling:
    return msgspec.convert(dict(values), Sampling)


def _asking(said: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the keys of a table whose values ask for something, with them."""
    return [
        f"{key} {_shown(said[key])}"
        for key, neutral in sorted(table.items())
        if key in said and said[key] not in neutral
    ]


def _harmless(said: Mapping[str, Any]) -> dict[str, list[str]]:
    found = {
        reason: [key for key in sorted(said) if re.fullmatch(pattern, key)]
        for pattern, reason in HARMLESS.items()
    }
    return {reason: keys for reason, keys in found.items() if keys}


def _known(said: Mapping[str, Any]) -> set[str]:
    harmless = [key for keys in _harmless(said).values() for key in keys]
    return {*FIELDS, *ELSEWHERE, *UNSUPPORTED, *harmless}


def _notes(name: str, kinds: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    return tuple(
        f"not used: {name}: {', '.join(keys)}: {reason}" for reason, keys in kinds.items() if keys
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
