"""The command line: exit codes, streams, and the chat on a terminal."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import aotlm_runtime
from aotlm_runtime.cli import main as cli
from tests.runtime import fake
from tests.runtime.terminal import ENVIRONMENT
from tests.runtime.test_chat import THINKING, say
from tests.runtime.test_model import chat_ids, text_after


def test_a_prompt_is_answered_on_stdout_with_figures_on_stderr(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abc", "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == text_after(chat_ids("abc"), 3) + "\n"
    assert "prompt 6 tokens (0 reused, 6 new), prefill" in err
    assert "generated 3 tokens, decode" in err


def test_without_figures_stderr_is_empty(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abc", "--no-stats", "--raw"]) == 0
    assert capsys.readouterr().err == ""


def test_a_dash_reads_the_prompt(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    assert cli.main(["run", str(bundle), "--prompt", "-", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == text_after(chat_ids("abc"), 3) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert cli.main(["run", str(bundle), "--prompt", "-"]) == 1
    assert "error: standard input is not UTF-8 at byte 1" in capsys.readouterr().err


def test_an_answer_that_fills_the_context_says_so(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abdf", "--context", "8"]) == 0
    assert "the context of 8 tokens is full" in capsys.readouterr().err


def test_an_error_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(tmp_path / "none"), "--prompt", "x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: no bundle at")
    assert err.count("\n") == 1
    assert cli.main(["run", str(tmp_path / "none"), "--prompt", "x", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["run"], ["run", "x", "--threads", "0"], ["run", "x", "--no-such"], ["walk"]]
)
def test_wrong_usage_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert "usage: aotlm-run" in capsys.readouterr().err


def test_a_mistyped_word_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chta", "x"]) == 2
    assert "there is no command 'chta'; did you mean chat?" in capsys.readouterr().err
    assert cli.main(["run", "x", "--tempreature=1"]) == 2
    err = capsys.readouterr().err
    assert "there is no flag --tempreature; did you mean --temperature?" in err
    assert err.startswith("usage: aotlm-run run")


def test_the_version_is_one_line_and_with_v_python_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"aotlm-run {aotlm_runtime.__version__}\n"
    assert cli.main(["--version", "-v"]) == 0
    assert f"\npython {sys.version.split()[0]}\n" in capsys.readouterr().out


def test_quiet_leaves_only_the_answer(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(bundle), "--prompt", "abdf", "--context", "8"]
    for quiet in ("-q", "--quiet"):
        assert cli.main([*words, quiet]) == 0
        out, err = capsys.readouterr()
        assert (bool(out), err) == (True, "")
    assert cli.main([*words, "-q", "--top-p", "2"]) == 1
    assert capsys.readouterr().err.startswith("error: top_p")
    assert cli.main(words) == 0
    assert "prefill" in capsys.readouterr().err


def test_the_penalty_has_both_of_its_names(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("--repeat-penalty", "--repetition-penalty"):
        assert cli.main(["run", str(bundle), "--prompt", "x", f"{name}=-1"]) == 1
        assert capsys.readouterr().err.startswith("error: repeat_penalty is -1.0")


def test_what_nobody_expected_is_one_sentence(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr("aotlm_runtime.bundle.reader.open_bundle", fail)
    assert cli.main(["verify", str(bundle)]) == 1
    assert capsys.readouterr().err.startswith("error: unexpected ZeroDivisionError: by nought; run")
    with pytest.raises(ZeroDivisionError):
        cli.main(["verify", str(bundle), "--debug"])


def test_help_is_exit_0_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error(bundle: Path) -> None:
    words = [sys.executable, "-m", "aotlm_runtime", "run", str(bundle), "--prompt", "abc"]
    command = f"{shlex.join(words)} | true"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "Error" not in result.stderr


def test_lines_that_are_piped_in_are_a_chat(bundle: Path) -> None:
    command = [sys.executable, "-m", "aotlm_runtime", "run", str(bundle), "--max-tokens", "3"]
    result = subprocess.run(
        command, input="abc\n\nefg\n", env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    first = text_after(chat_ids("abc"), 3)
    assert result.stdout == f"{first}\n{text_after(chat_ids('abc', first, 'efg'), 3)}\n"


def test_json_is_one_line_with_the_answer_and_its_figures(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(bundle), "--prompt", "abc", "--max-tokens", "3", "--json"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    found = json.loads(out)
    answer = text_after(chat_ids("abc"), 3)
    assert (found["text"], bytes(found["ids"]).decode()) == (answer, answer)
    assert (found["finish_reason"], found["prompt_tokens"]) == ("max_tokens", 6)
    assert (found["reused_tokens"], found["generated_tokens"]) == (0, 3)
    assert sorted(found["timings"]) == [
        "decode_seconds",
        "load_seconds",
        "prefill_seconds",
        "verify_seconds",
    ]


def test_every_flag_of_an_answer_reaches_it(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = text_after([*b"<|system|>s", fake.END, *chat_ids("abc")])
    words = ["--system", "s", "--stop", whole[4], "--stop", whole[2], "--no-stats"]
    assert cli.main(["run", str(bundle), "--prompt", "abc", *words]) == 0
    first = min(whole.find(whole[4]), whole.find(whole[2]))
    assert capsys.readouterr().out == whole[:first] + "\n"
    words = ["--temperature", "2", "--seed", "7", "--max-tokens", "9", "--raw", "--no-stats"]
    outs = []
    for more in ([], [], ["--seed", "8"], ["--top-k", "1"]):
        assert cli.main(["run", str(bundle), "--prompt", "abcd", *words, *more]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1] != outs[2]
    assert outs[3] == text_after(list(b"abcd"), 9) + "\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--top-p", "2"], "error: top_p is 2.0, but must be above 0, up to 1"),
        (["--stop", ""], "error: a stop string is empty"),
        (["--raw", "--system", "x"], "error: a system message needs a chat template"),
    ],
)
def test_values_that_cannot_be_are_one_sentence(
    bundle: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abc", *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_thinking_is_shown_or_hidden(
    bundle: Path,
    stub: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.write_bundle(bundle, stub, template=THINKING)
    words = ["run", str(bundle), "--prompt", "abc", "--max-tokens", "16", "--no-stats"]
    for more, shown in ((["--think=show"], "hm\n\nyes\n"), (["--think=hide"], "yes\n"), ([], None)):
        say(monkeypatch, b"hm\n</think>\n\nyes")
        assert cli.main([*words, *more]) == 0
        assert capsys.readouterr().out == shown or shown is None
    say(monkeypatch, b"hm\n</think>\n\nyes")
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["thinking"], found["text"]) == ("hm", "yes")


def test_inspect_prints_what_a_bundle_is(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(bundle)]) == 0
    out = capsys.readouterr().out
    for words in (
        "dtype  ",
        "context  ",
        "abi digest",
        "  test",
        "weights.safetensors",
        "verified",
    ):
        assert words in out
    assert cli.main(["inspect", str(bundle), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context"], found["licence"], found["verified"]) == (fake.CONTEXT, None, True)
    assert found["files"]["weights.safetensors"]["size_bytes"] == 8192


@pytest.mark.parametrize("command", ["inspect", "verify", "run", "chat"])
def test_a_spoiled_bundle_is_refused_by_every_command(
    bundle: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    weights = bundle / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert cli.main([command, str(bundle)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the block at byte 4096 of 'weights.safetensors' in ")


def test_verify_says_what_it_verified(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(bundle)]) == 0
    assert "bundle: 7 files, " in capsys.readouterr().out


def test_perplexity_reads_files_and_standard_input(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello there")
    assert cli.main(["perplexity", str(bundle), str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_scored"] == len("hello there") - 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello there\n")))
    assert cli.main(["perplexity", str(bundle), "-"]) == 0
    assert f"perplexity {found['perplexity']:.4f} over 10 tokens" in capsys.readouterr().out
    assert cli.main(["perplexity", str(bundle), str(tmp_path / "none")]) == 1
    assert "error: cannot read" in capsys.readouterr().err
