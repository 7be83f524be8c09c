"""What a publisher says of sampling: what becomes of it, what is not used, what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import GenerationConfig

from aotlm.capture.sampling import (
    ELSEWHERE,
    FIELDS,
    GGUF_FIELDS,
    HARMLESS,
    UNSUPPORTED,
    published_gguf_sampling,
    published_sampling,
)
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from aotlm_runtime.bundle.manifest import Sampling
from tests.unit.checkpoints import configure, saved, tiny_model
from tests.unit.gguf_files import write_gguf

R1 = {
    "_from_model_config": True,
    "bos_token_id": 151646,
    "eos_token_id": 151643,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.95,
    "transformers_version": "4.39.3",
}


def said(**config: Any) -> dict[str, Any]:
    """What of a generation configuration goes into the manifest."""
    return dict(msgspec.to_builtins(published_sampling(config).sampling))


def test_what_the_runtime_can_do_goes_into_the_manifest() -> None:
    assert said(**R1) == {"temperature": 0.6, "top_p": 0.95}
    assert said(
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.05,
        max_new_tokens=2048,
        stop_strings=["\n\n", "END"],
    ) == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.05,
        "repeat_penalty": 1.05,
        "max_tokens": 2048,
        "stop": ["\n\n", "END"],
    }


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, {}),
        ({"do_sample": False}, {}),
        ({"do_sample": None, "temperature": None}, {}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "top_k": 64}, {"temperature": 1.0, "top_k": 64}),
        ({"do_sample": True, "temperature": 0}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {}),
        ({"do_sample": False, "repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"top_p": 0.9, "top_k": 50}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"max_new_tokens": 100}, {"max_tokens": 100}),
        ({"stop_strings": "END"}, {"stop": ["END"]}),
    ],
)
def test_tokens_are_drawn_where_the_publisher_says_so(
    config: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert said(**config) == wanted


def test_what_has_no_effect_without_sampling_is_named() -> None:
    (note,) = published_sampling({"do_sample": False, "temperature": 0.6, "top_p": 0.9}).notes
    assert note == "not used: generation_config.json: temperature, top_p: do_sample is false"
    (note,) = published_sampling({"top_k": 50}).notes
    assert note == "not used: generation_config.json: top_k: do_sample is missing"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_beams", 4),
        ("no_repeat_ngram_size", 3),
        ("typical_p", 0.9),
        ("max_length", 4096),
        ("min_new_tokens", 5),
        ("suppress_tokens", [1, 2]),
        ("guidance_scale", 1.5),
    ],
)
def test_what_changes_answers_and_cannot_be_done_is_named_once(key: str, value: Any) -> None:
    (note,) = published_sampling({key: value}).notes
    assert note == (
        f"not used: generation_config.json: {key} {value}: the runtime does not have it, so "
        "answers may differ from the publisher's"
    )


@pytest.mark.parametrize(
    "config",
    [{key: value} for key, values in UNSUPPORTED.items() for value in (*values, None)],
    ids=str,
)
def test_a_value_that_asks_for_nothing_is_not_named(config: dict[str, Any]) -> None:
    assert published_sampling(config).notes == ()


def test_harmless_keys_are_named_with_the_reason_and_others_as_unknown() -> None:
    notes = published_sampling({**R1, "pad_token_id": 0, "use_cache": True, "mood": "calm"}).notes
    assert notes == (
        "not used: generation_config.json: pad_token_id: one sequence needs no padding",
        "not used: generation_config.json: _from_model_config, transformers_version: where the "
        "file is from",
        "not used: generation_config.json: use_cache: how transformers computes, not what",
        "not used: generation_config.json: mood: it is not known here",
    )


def test_every_key_that_transformers_knows_is_in_a_table() -> None:
    keys = [key for key in vars(GenerationConfig()) if key not in (*FIELDS, *ELSEWHERE)]
    notes = published_sampling({key: "no such value" for key in keys}).notes
    assert not [note for note in notes if "not known here" in note]
    assert all(any(key in note for note in notes) for key in keys)
    assert not {*FIELDS, *ELSEWHERE} & {*UNSUPPORTED}
    assert not [key for key in (*FIELDS, *UNSUPPORTED) if key in HARMLESS]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("temperature", -1, "temperature is -1, but must be 0 "),
        ("temperature", "hot", "temperature is 'hot'"),
        ("temperature", True, "Expected `float | null`, got `bool`"),
        ("temperature", float("nan"), "temperature is nan"),
        ("top_p", 1.5, "top_p is 1.5, but must be above 0, up to 1"),
        ("top_p", 0, "top_p is 0"),
        ("top_k", -1, "top_k is -1"),
        ("top_k", 2.5, "top_k is 2.5"),
        ("top_k", [50], "top_k is "),
        ("min_p", 2, "min_p is 2"),
        ("repetition_penalty", 0, "repeat_penalty is 0"),
        ("max_new_tokens", 0, "cannot generate 0 tokens"),
        ("max_new_tokens", "many", "max_tokens is 'many'"),
        ("stop_strings", "", "stop string is empty"),
        ("stop_strings", 5, "stop"),
        ("stop_strings", [5], "stop"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_sentence(
    key: str, value: Any, sentence: str
) -> None:
    with pytest.raises(AotlmError) as caught:
        published_sampling({"do_sample": True, key: value})
    text = str(caught.value)
    assert text.startswith(f"generation_config.json says {key} {value!r}, which cannot be: ")
    assert sentence in text
    assert text.endswith("; correct it, or take the line out")
    assert "\n" not in text


def test_do_sample_is_true_or_false() -> None:
    with pytest.raises(AotlmError, match="says do_sample 'yes', wanted is true or false"):
        published_sampling({"do_sample": "yes"})


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({}, {}),
        ({"temp": 0.6, "top_p": 0.95}, {"temperature": 0.6, "top_p": 0.95}),
        ({"top_k": 64, "min_p": 0.1}, {"temperature": 1.0, "top_k": 64, "min_p": 0.1}),
        ({"penalty_repeat": 1.25}, {"repeat_penalty": 1.25}),
        ({"temp": 0.0}, {"temperature": 0.0}),
    ],
)
def test_a_gguf_file_says_it_too(
    tmp_path: Path, metadata: dict[str, Any], wanted: dict[str, Any]
) -> None:
    keys = {f"general.sampling.{key}": value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), keys)
    source = open_model(str(path))
    assert msgspec.to_builtins(source.published.sampling) == wanted
    assert not any("sampling" in note for note in source.not_used)


def test_a_way_to_draw_that_only_gguf_files_have_is_named(tmp_path: Path) -> None:
    keys = {"general.sampling.mirostat": 2, "general.sampling.penalty_last_n": 64}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), keys)
    (note,) = [note for note in open_model(str(path)).not_used if "sampling" in note]
    assert note == (
        "not used: tiny.gguf: general.sampling.mirostat 2, general.sampling.penalty_last_n 64: the "
        "runtime does not have it, so answers may differ from the publisher's"
    )


def test_a_gguf_value_that_cannot_be_is_refused() -> None:
    with pytest.raises(AotlmError, match=r"x.gguf says general.sampling.top_p 1.5, which cannot"):
        published_gguf_sampling({"general.sampling.top_p": 1.5}, "x.gguf")
    assert set(GGUF_FIELDS.values()) < set(FIELDS.values())


def test_a_folder_says_it_in_its_generation_config_or_its_config(tmp_path: Path) -> None:
    saved(tmp_path)
    config = {"do_sample": True, "temperature": 0.6, "mood": "calm"}
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(config))
    source = open_model(str(tmp_path))
    assert source.published.sampling == Sampling(temperature=0.6)
    assert "not used: generation_config.json: mood: it is not known here" in source.not_used
    path.unlink()
    configure(tmp_path, do_sample=True, temperature=0.8, num_beams=2)
    source = open_model(str(tmp_path))
    assert source.published.sampling == Sampling(temperature=0.8)
    assert any(note.startswith("not used: config.json: num_beams 2: ") for note in source.not_used)
