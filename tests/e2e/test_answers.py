"""What the compiled model says, and that PyTorch would have said the same."""

import pytest

import aotlm_runtime
from aotlm.capture.source import open_model
from aotlm.check import compare
from aotlm.codegen.compile import read_model_file
from aotlm_runtime.model import Model
from tests.e2e.conftest import Built

QUESTION = "What is the capital of France?"


def test_the_folder_and_the_archive_answer_paris_in_the_same_words(
    built: Built, model: Model
) -> None:
    answer = "".join(model.generate(QUESTION))
    assert "Paris" in answer
    assert model.last is not None
    assert model.last.finish == "eos"
    assert "".join(aotlm_runtime.load(built.archive).generate(QUESTION)) == answer


@pytest.mark.timeout(1800)  # 2560 decode calls of ours, and PyTorch: minutes on two cores
def test_twenty_prompts_continue_as_in_pytorch_f32_eager(built: Built) -> None:
    """64 tokens each. That every token is the best one after those before it, by PyTorch's
    logits of our text, means that PyTorch's own greedy decoding would have made the same text."""
    rows = compare(built.out, read_model_file(built.out / "import"), open_model("demo", None))
    print(*rows, sep="\n")
    assert [row for row in rows if not row.passed] == []
    assert rows[-1].what == f"greedy tokens equal to f32 eager ({20 * 64} tokens)"
    assert rows[-1].value == 1.0
