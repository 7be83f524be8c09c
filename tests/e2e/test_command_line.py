"""The runtime as its own process: what it imports, standard input, and the chat on a terminal."""

import re
import subprocess
import sys

from aotlm_runtime import GenerationOptions
from aotlm_runtime.model import Model
from tests.e2e.conftest import Built
from tests.runtime import terminal
from tests.runtime.terminal import leave, open_chat

RUN = ("-m", "aotlm_runtime", "run")
PROMPT = "What is the capital of France?"
STATS = r"prompt (\d+) tokens \((\d+) reused"
COMPILER_ONLY = {"torch", "transformers", "safetensors", "mlir", "aotlm"}


def _run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=120
    )


def test_the_process_imports_nothing_of_the_compiler(built: Built, model: Model) -> None:
    words = ("--prompt", PROMPT, "--max-tokens", "8", "--no-stats")
    result = _run("-X", "importtime", *RUN, str(built.bundle), *words)
    assert result.stdout == "".join(model.generate(PROMPT, GenerationOptions(max_tokens=8))) + "\n"
    # "import time: self [us] | cumulative | imported package", nested ones indented
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "aotlm_runtime.compiled.session" in imported
    assert {name.partition(".")[0] for name in imported} & COMPILER_ONLY == set()


def test_a_dash_reads_the_prompt_from_standard_input(built: Built, model: Model) -> None:
    words = ("--prompt", "-", "--max-tokens", "8")
    result = _run(*RUN, str(built.bundle), *words, text=PROMPT + "\n")
    assert result.stdout == "".join(model.generate(PROMPT, GenerationOptions(max_tokens=8))) + "\n"
    assert re.search(STATS, result.stderr)


def test_the_second_turn_of_a_chat_computes_only_what_is_new(built: Built) -> None:
    child = open_chat(built.bundle)
    turns = []
    for message in (PROMPT, "And of Italy?"):
        child.sendline(message)
        child.expect(STATS)
        turns.append((child.before, int(child.match[1]), int(child.match[2])))
        child.expect(terminal.PROMPT)
    assert leave(child, "d") == 0
    (first, asked, reused), (_, asked_again, reused_again) = turns
    assert "Paris" in first
    assert reused == 0
    # all of the first question and some of its answer, but not the second question
    assert asked < reused_again < asked_again


def test_an_interrupt_stops_an_answer_and_a_second_one_leaves(built: Built) -> None:
    child = open_chat(built.bundle, "--no-stats")
    child.sendline("Write a very long story about a fox.")
    child.expect(r"\?2004l")  # line editing ends
    child.expect(r"\w+ \w+ \w+")  # the story begins
    child.sendcontrol("c")
    child.expect(r"\(stopped\)")
    child.expect(terminal.PROMPT)
    child.sendline("What is the capital of France?")
    child.expect("Paris")
    child.expect(terminal.PROMPT)
    assert leave(child, "c") == 0
