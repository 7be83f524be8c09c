"""The ids of chats equal those of transformers; what is wrong with a tokenizer is named."""

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from aotlm_runtime import errors
from aotlm_runtime.text.tokenizer import Tokenizer
from tests.runtime import fake

CHATML = (
    "{% for message in messages %}\n"
    "    {% if loop.first and message['role'] != 'system' %}\n"
    "<|system|>You help.<|end|>\n"
    "    {% endif %}\n"
    "{{ '<|' + message.role + '|>' + message.content | trim + '<|end|>\\n' }}\n"
    "{% endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
REASONING = (
    "{{ bos_token }}{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{% set text = m.content.split('</think>')[-1] %}"
    "{% else %}{% set text = m.content %}{% endif %}"
    "<|{{ m.role }}|>{{ ns.n }}:{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
JSON = (
    "{% if tools is none and not documents %}{{ messages | tojson }}"
    "{{ messages | tojson(indent=2) }}"
    "{% endif %}{{ dict(a=1) | tojson(sort_keys=true) }}{{ strftime_now('%Y') }}"
)
LOOPS = (
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.content }}"
    "{% generation %}{{ eos_token }}{% endgeneration %}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": "  <b>Grüße</b> & 'quotes' 🙂 "},
    {"role": "assistant", "content": "<think>hm\n</think>\n\nYes."},
    {"role": "user", "content": "日本語?\n"},
]


def files(template: str, **config: Any) -> dict[str, bytes]:
    config = {"bos_token": "<|user|>", "eos_token": {"content": "<|end|>"}, **config}
    return {
        "tokenizer.json": fake.byte_tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": template.encode(),
    }


@pytest.mark.parametrize("template", [CHATML, REASONING, JSON, LOOPS, fake.TEMPLATE])
@pytest.mark.parametrize("n_messages", [1, 3])
def test_chat_ids_equal_those_of_transformers(template: str, n_messages: int) -> None:
    reference = PreTrainedTokenizerFast(
        tokenizer_object=fake.byte_tokenizer(),
        bos_token="<|user|>",
        eos_token="<|end|>",
        chat_template=template,
    )
    messages = MESSAGES[:n_messages]
    wanted = reference.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert Tokenizer(files(template)).encode_chat(messages) == wanted


SETTINGS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ note }}"
)


@pytest.mark.parametrize("template", [CHATML, fake.TEMPLATE, LOOPS])
@pytest.mark.parametrize("said", ["Once upon", "It is ", "  a\n", "twice twice"])
def test_the_last_message_is_continued_as_transformers_does(template: str, said: str) -> None:
    reference = PreTrainedTokenizerFast(
        tokenizer_object=fake.byte_tokenizer(),
        bos_token="<|user|>",
        eos_token="<|end|>",
        chat_template=template,
    )
    messages = [*MESSAGES, {"role": "assistant", "content": said}]
    wanted = reference.apply_chat_template(
        messages, tokenize=True, continue_final_message=True, return_dict=False
    )
    assert Tokenizer(files(template)).encode_chat(messages, ending="continue") == wanted


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ messages | length }}", "Yes"), (REASONING, "<think>hm</think>Yes"), ("no", "")],
)
def test_a_message_that_the_template_changes_cannot_be_continued(template: str, said: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": said}]
    with pytest.raises(errors.TemplateFailedError, match="does not write out the last message"):
        Tokenizer(files(template)).encode_chat(messages, ending="continue")


@pytest.mark.parametrize("settings", [{}, {"enable_thinking": False}, {"note": "Hm", "x": 1}])
@pytest.mark.parametrize("asks", [True, False])
def test_settings_of_a_template_are_those_of_transformers(
    settings: dict[str, Any], asks: bool
) -> None:
    reference = PreTrainedTokenizerFast(
        tokenizer_object=fake.byte_tokenizer(), chat_template=SETTINGS
    )
    wanted = reference.apply_chat_template(
        MESSAGES[:1], tokenize=True, add_generation_prompt=asks, return_dict=False, **settings
    )
    text = Tokenizer(files(SETTINGS))
    ending: Any = "ask" if asks else "none"
    assert text.encode_chat(MESSAGES[:1], ending=ending, settings=settings) == wanted


def test_a_setting_is_text_and_overrides_nothing_that_is_given_anyway() -> None:
    text = Tokenizer(files(SETTINGS))
    ids = text.encode_chat(MESSAGES[:1], settings={"note": "<|end|>", "messages": [], "self": 1})
    assert ids[-7:] == list(b"<|end|>")
    assert ids.count(fake.END) == 1
    assert text.template is not None
    assert text.template.reads("enable_thinking")
    assert not text.template.reads("enable")


def test_the_configuration_can_hold_the_template_too() -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    for source in ("yes", named):
        held = files("", chat_template=source)
        del held["chat_template.jinja"]
        assert Tokenizer(held).encode_chat(MESSAGES) == list(b"yes")


def test_a_template_can_refuse_the_messages() -> None:
    text = Tokenizer(files("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(
        errors.TemplateFailedError, match="failed on 3 messages: roles must alternate"
    ):
        text.encode_chat(MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox_or_crash(template: str) -> None:
    with pytest.raises(errors.TemplateFailedError):
        Tokenizer(files(template)).encode_chat(MESSAGES)


def test_a_template_with_wrong_syntax_is_named() -> None:
    with pytest.raises(errors.TemplateInvalidError, match="does not compile"):
        Tokenizer(files("{% if %}")).encode_chat(MESSAGES)


def test_the_vocabulary_ends_behind_the_largest_id_with_text() -> None:
    assert Tokenizer(files("")).vocabulary == 259


def test_text_without_utf8_is_refused() -> None:
    with pytest.raises(errors.PromptInvalidError, match="not valid UTF-8 at character 1"):
        Tokenizer(files("")).encode("a\udc80")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokenizer.json": b"{"}, "tokenizer.json cannot be used"),
        ({"tokenizer_config.json": b"{"}, "tokenizer_config.json is not JSON"),
    ],
)
def test_broken_files_are_named(changes: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(errors.TokenizerInvalidError, match=sentence):
        Tokenizer({**files("{{ bos_token }}"), **changes}).encode_chat(MESSAGES)


def test_a_missing_tokenizer_is_named() -> None:
    with pytest.raises(errors.TokenizerInvalidError, match=r"has no tokenizer\.json, only a\.txt"):
        Tokenizer({"a.txt": b""})


def test_an_id_is_named_by_its_text_within_a_text_and_a_special_one_by_its_name() -> None:
    tokenizer = Tokenizer(files(CHATML))
    assert tokenizer.name(ord("a")) == "a"
    assert tokenizer.name(ord(" ")) == " "
    assert tokenizer.name(fake.END) == "<|end|>"
    assert tokenizer.decode([fake.END]) == ""
