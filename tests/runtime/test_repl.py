"""The conversation: its commands, what it reads, and how it behaves on a terminal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aotlm_runtime.cli import main as cli
from aotlm_runtime.cli.line_input import read_message
from tests.runtime import terminal
from tests.runtime.terminal import ENVIRONMENT, leave, open_chat
from tests.runtime.test_chat import THINKING, say
from tests.runtime.test_model import chat_ids, text_after


def piped(bundle: Path, text: str, *words: str) -> tuple[str, str]:
    """What a chat prints to standard output and error for lines that are piped in."""
    command = [sys.executable, "-m", "aotlm_runtime", "chat", str(bundle), "--max-tokens=3", *words]
    result = subprocess.run(
        command, input=text, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return result.stdout, result.stderr


def read(*lines: str) -> str | None:
    """The message that these lines are."""
    left = iter(lines)

    def next_line(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return read_message(next_line)


def test_three_quotes_hold_a_message_of_several_lines() -> None:
    assert read("abc") == "abc"
    assert read('"""', "a", "", " b", '"""') == "a\n\n b"
    assert read('"""a', 'b"""') == "a\nb"
    assert read('"""a"""') == "a"
    assert read('say """a') == 'say """a'
    assert read() is None
    assert read('"""', "a") is None


def test_commands_change_the_conversation(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    lines = f"/system s\nabc\n/save {saved}\n/reset\n/system\nabc\n/load {saved}\nefg\n/exit\nx\n"
    out, err = piped(bundle, lines, "--no-stats")
    start = [*b"<|system|>s", 258]
    first = text_after([*start, *chat_ids("abc")], 3)
    third = text_after([*start, *chat_ids("abc", first, "efg")], 3)
    assert out == f"{first}\n{text_after(chat_ids('abc'), 3)}\n{third}\n"
    assert err == ""
    assert len(json.loads(saved.read_text())) == 3


def test_options_can_be_set_and_put_back(bundle: Path) -> None:
    lines = "/set max-tokens 2\nabc\n/reset\n/set max-tokens\n/set stop q\n/set stop r\n/set\n"
    lines += "/set stop\n/set stats off\n/set think hide\n/set temperature 0.5\n/set\n"
    out, err = piped(bundle, lines)
    assert out == text_after(chat_ids("abc"), 2) + "\n"
    shown = [line for line in err.splitlines() if not line.startswith("prompt ")]
    half = len(shown) // 2
    assert shown[:4] == ["max-tokens (default)", "stop 'q' 'r'", "think (default)", "stats on"]
    assert shown[half : half + 5] == [
        "max-tokens (default)",
        "stop (none)",
        "think hide",
        "stats off",
        "temperature 0.5",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/walk", "error: there is no command /walk; /help lists them"),
        ("/set colour red", "error: there is no option 'colour'; choose from max-tokens, stop"),
        ("/set top-p 2", "error: top_p is 2.0, but must be above 0"),
        ("/set top-k x", "error: top-k: 'x' is not a whole number from 0 on"),
        ("/set think maybe", "error: think cannot be 'maybe'; choose show or hide"),
        ("/set stats 1", "error: stats cannot be '1'; choose on or off"),
        ("/save", "error: no file was named"),
        ("/load none.json", "error: cannot load a chat from none.json"),
        ("x" * 300, "error: the prompt has 303 tokens, but the context holds 200"),
        ("/stats", "nothing was answered yet"),
        ("/help", "/help              these lines"),
    ],
)
def test_the_conversation_goes_on_after_what_it_cannot_do(
    bundle: Path, line: str, sentence: str
) -> None:
    out, err = piped(bundle, f"{line}\nabc\n", "--no-stats")
    assert err.startswith(sentence)
    assert out == text_after(chat_ids("abc"), 3) + "\n"


def test_texts_are_continued_one_by_one_with_raw(bundle: Path) -> None:
    out, err = piped(bundle, "abcd\n/reset\nabcd\n", "--raw", "--no-stats")
    assert out == f"{text_after(list(b'abcd'), 3)}\n" * 2
    assert err.startswith("error: texts are continued one by one")


def test_a_full_context_leaves_out_turns_with_a_notice(bundle: Path) -> None:
    _, err = piped(bundle, "abcdefgh\n" * 3, "--context=40", "--no-stats")
    assert err == (
        "note: the first 4 messages are left out from here on, to stay within the context "
        "of 40 tokens\n"
    )


@pytest.mark.parametrize("term", ["xterm", "dumb"])
@pytest.mark.parametrize("key", ["c", "d"])
def test_a_chat_on_a_terminal_answers_and_leaves_with_0(bundle: Path, key: str, term: str) -> None:
    child = open_chat(bundle, "--max-tokens=3", term=term)
    child.sendline("abc")
    child.expect(text_after(chat_ids("abc"), 3))
    child.expect("generated 3 tokens")
    child.expect(terminal.PROMPT)
    child.sendline("/stats")
    child.expect(r"\(0 reused, 6 new\)")
    child.expect(terminal.PROMPT)
    assert leave(child, key) == 0


def test_lines_can_be_edited_broken_and_cleared_on_a_terminal(bundle: Path) -> None:
    child = open_chat(bundle, "--max-tokens=3")
    child.send("xx")
    child.sendcontrol("c")  # clears what was typed
    child.send("acf\x1b[D\x1b[D")  # two steps to the left
    child.send("b\x05\x1b\rg\r")  # a letter, the line's end, Alt-Enter, a letter
    child.expect(text_after(chat_ids("abcf\ng"), 3))
    child.expect("generated 3 tokens")
    child.expect(terminal.PROMPT)
    child.send("\x1b[A")  # the history
    child.expect("abcf")
    child.send("\r")
    child.expect("generated 3 tokens")
    child.expect(terminal.PROMPT)
    assert leave(child, "d") == 0


def test_an_interrupt_between_messages_leaves_with_0(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> object:
        raise KeyboardInterrupt
        yield

    lines = iter(["abc"])

    def read_line() -> str:
        for line in lines:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr("aotlm_runtime.model.generate", interrupted)
    monkeypatch.setattr("builtins.input", read_line)
    assert cli.main(["run", str(bundle)]) == 0
    assert "(stopped)" in capsys.readouterr().err


def test_piped_output_has_no_escape_codes(
    bundle: Path,
    stub: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.runtime import fake

    fake.write_bundle(bundle, stub, template=THINKING)
    monkeypatch.setenv("TERM", "xterm")
    for is_terminal, no_colour, wanted in (
        (False, "", "hm\n\nyes\n"),
        (True, "1", "hm\n\nyes\n"),
        (True, "", "\x1b[2mhm\x1b[0m\n\nyes\n"),
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda value=is_terminal: value)
        monkeypatch.setenv("NO_COLOR", no_colour)
        say(monkeypatch, b"hm</think>\n\nyes")
        words = ["--prompt", "abc", "--max-tokens", "15", "--no-stats"]
        assert cli.main(["run", str(bundle), *words]) == 0
        assert capsys.readouterr().out == wanted
