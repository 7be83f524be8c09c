"""A loaded bundle: answers, chats, their cache, their memory."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aotlm_runtime
from aotlm_runtime import GenerationOptions, errors
from aotlm_runtime.model import Model
from tests.runtime import fake


def chat_ids(*texts: str) -> list[int]:
    """The ids of alternating user and assistant texts, and of the next assistant's start."""
    roles = [fake.USER, fake.ASSISTANT] * len(texts)
    turns = [[role, *text.encode(), fake.END] for role, text in zip(roles, texts, strict=False)]
    return [*(token for turn in turns for token in turn), fake.ASSISTANT]


def text_after(ids: list[int], n_tokens: int = 1000) -> str:
    return bytes(fake.expected(ids, n_tokens)).decode()


def test_an_answer_follows_the_template(model: Model) -> None:
    assert "".join(model.generate("abc")) == text_after(chat_ids("abc"))
    assert model.last is not None
    assert model.last.finish == "eos"


def test_raw_continues_the_text(model: Model) -> None:
    assert "".join(model.generate("abcd", raw=True)) == text_after(list(b"abcd"))


def test_a_model_without_a_template_continues_the_text(bundle: Path, stub: bytes) -> None:
    (bundle / "tokenizer/chat_template.jinja").unlink()
    model = aotlm_runtime.load(fake.write_bundle(bundle, stub, template=None))
    assert "".join(model.generate("abcd")) == text_after(list(b"abcd"))
    with pytest.raises(errors.TemplateMissingError, match="no chat template"):
        list(model.chat().send("abcd"))


def test_a_system_message_comes_first_and_needs_a_template(model: Model) -> None:
    ids = model.encode("abc", system="s")
    assert model.text.decode(ids) == "<|system|>sabc"
    with pytest.raises(errors.OptionInvalidError, match="a system message needs a chat template"):
        model.encode("abc", system="s", raw=True)


def test_a_stop_string_ends_an_answer_and_leaves_the_cache_usable(model: Model) -> None:
    whole = text_after(chat_ids("abc"))
    assert len(whole) > 4
    options = GenerationOptions(stop=(whole[3:5],))
    assert "".join(model.generate("abc", options)) == whole[: whole.find(whole[3:5])]
    assert model.last is not None
    assert model.last.finish == "stop"
    assert "".join(model.generate("abc")) == whole


def test_pieces_carry_tokens_and_log_probabilities(model: Model) -> None:
    pieces = list(model.stream(model.encode("abc"), GenerationOptions(max_tokens=3, n_logprobs=2)))
    tokens = [token for piece in pieces for token in piece.tokens]
    assert bytes(token.id for token in tokens) == text_after(chat_ids("abc"), 3).encode()
    # one logit of the tokenizer's 259 is 1, the others are 0
    assert tokens[0].logprob == pytest.approx(1 - math.log(math.e + 258))
    assert [len(token.top) for token in tokens] == [2, 2, 2]


def test_max_tokens_limits_the_answer(model: Model) -> None:
    wanted = text_after(chat_ids("abc"), 2)
    assert len(wanted) == 2
    assert "".join(model.generate("abc", GenerationOptions(max_tokens=2))) == wanted
    assert model.last is not None
    assert (model.last.finish, model.last.generated) == ("max_tokens", 2)


def test_an_answer_ends_with_the_context(bundle: Path) -> None:
    model = aotlm_runtime.load(bundle, context=8)
    # of the prompt's seven tokens none is computed twice, and two more have a place
    answer = "".join(model.generate("abdf"))
    assert answer == text_after(chat_ids("abdf"), 2)
    assert model.last is not None
    assert model.last.finish == "context"


def test_the_same_prompt_again_gives_the_same_text(model: Model) -> None:
    assert (
        len({"".join(model.generate("abc", GenerationOptions(max_tokens=20))) for _ in range(3)})
        == 1
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"context": 201}, "a context of 201 tokens is not possible: the model takes 1 to 200"),
        ({"context": 0}, "a context of 0 tokens"),
        ({"threads": 0}, "0 threads are not possible"),
        ({"threads": 1000}, "takes 1 to 256"),
    ],
)
def test_impossible_options_are_refused(
    bundle: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(errors.OptionInvalidError, match=sentence):
        aotlm_runtime.load(bundle, **options)


def test_repeating_a_prompt_adds_no_memory(model: Model) -> None:
    def run() -> int:
        list(model.generate("abc", GenerationOptions(max_tokens=50)))
        model.session.rewind(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(3):
        before = run()
    assert max(run() for _ in range(20)) - before < 1 << 20


def test_neither_import_nor_use_needs_torch_or_the_compiler(bundle: Path) -> None:
    package = Path(aotlm_runtime.__file__).parents[1]
    script = (
        "import sys, aotlm_runtime\n"
        "import aotlm_runtime.cli.main\n"
        "light = {'numpy', 'tokenizers', 'jinja2', 'archspec', 'msgspec'} & set(sys.modules)\n"
        f"text = ''.join(aotlm_runtime.load({str(bundle)!r}).generate('abc'))\n"
        "heavy = {'torch', 'transformers', 'mlir', 'aotlm', 'safetensors'} & set(sys.modules)\n"
        "print(sorted(light), sorted(heavy), len(text) > 0)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout == "[] [] True\n"
