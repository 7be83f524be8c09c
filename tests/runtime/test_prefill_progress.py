"""A long prompt shows how far it is, on a terminal alone, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.runtime import fake
from tests.runtime.terminal import ENVIRONMENT, PROMPT, leave, open_chat

BAR = "reading the prompt"
LONG, SHORT = "a" * 180, "a" * 20  # the stub takes chunks of 32 tokens


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose prefill of LONG takes over two seconds."""
    folder = tmp_path_factory.mktemp("slow")
    library = folder / "stub.so"
    fake.compile_stub(library, fake.abi(), END_EVERY=1 << 30, DELAY_MICROSECONDS=400_000)
    return fake.write_bundle(folder / "bundle", library.read_bytes())


def command(bundle: Path, prompt: str, *words: str) -> list[str]:
    run = ["-m", "aotlm_runtime", "run", str(bundle), "--prompt", prompt, "--max-tokens", "1"]
    return [sys.executable, *run, "--no-stats", *words]


def on_terminal(bundle: Path, prompt: str, *words: str) -> str:
    """Return what a terminal was sent."""
    _, *rest = command(bundle, prompt, *words)
    size = (24, 100)
    child = pexpect.spawn(
        sys.executable, rest, env={**ENVIRONMENT}, encoding="utf-8", timeout=60, dimensions=size
    )
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    return str(child.before)


def shown(sent: str) -> str:
    """Return what is left on the terminal: a carriage return overwrites the line."""
    lines = []
    for line in sent.replace("\r\n", "\n").split("\n"):
        kept = ""
        for part in line.split("\r"):
            kept = part + kept[len(part) :]
        lines.append(kept.rstrip())
    return "\n".join(lines).strip("\n")


def test_a_long_prompt_shows_how_far_it_is_until_the_answer_starts(bundle: Path) -> None:
    sent = on_terminal(bundle, LONG)
    assert BAR in sent
    assert "/183" in sent  # the template's tokens are among them
    left = shown(sent)
    assert len(left) == 1  # the answer
    assert BAR not in sent[sent.rindex(left) :]


@pytest.mark.parametrize(("prompt", "words"), [(SHORT, ()), (LONG, ("--quiet",))])
def test_a_short_prompt_and_a_quiet_run_show_nothing(
    bundle: Path, prompt: str, words: tuple[str, ...]
) -> None:
    assert BAR not in on_terminal(bundle, prompt, *words)


def test_where_standard_error_is_no_terminal_nothing_is_shown(bundle: Path) -> None:
    done = subprocess.run(command(bundle, LONG), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_chat_shows_it_too(bundle: Path) -> None:
    child = open_chat(bundle, "--max-tokens", "1", "--no-stats")
    child.sendline(LONG)
    child.expect(BAR)
    child.expect(PROMPT)
    assert leave(child, "d") == 0


def test_ctrl_c_while_a_prompt_is_read_clears_the_line(bundle: Path) -> None:
    child = open_chat(bundle, "--max-tokens", "1", "--no-stats", term="dumb")
    child.sendline(LONG)
    child.expect(BAR)
    child.sendcontrol("c")
    child.expect(r"\(stopped\)")
    assert BAR not in shown(str(child.before).split("\n")[-1])
    child.expect(PROMPT)
    assert leave(child, "d") == 0
