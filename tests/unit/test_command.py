"""The commands: their names and flags, and errors as one sentence and an exit code."""

import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import aotlm
import tasks
from aotlm.driver.command import as_task, flag_words
from aotlm.driver.invoke_words import check_words
from aotlm.driver.main import PROGRAM
from aotlm.graph.ops import OPS
from aotlm_runtime.cli.command_line import Command, Program, Word
from aotlm_runtime.cli.flags import RUN

ROOT = Path(__file__).parents[2]
FLAGS = {
    "toolchain": ("--engine", "--base-image", "--cache"),
    "image": ("--bundle", "--tag", "--base-image"),
    "import": ("--model", "--revision", "--dtype", "--out", "--force", "--dump-after", "--engine"),
    "compile": (
        "--dir",
        "--model",
        "--dtype",
        "--target",
        "--dump-after",
        "--list-passes",
        "--list-kernels",
        "--time-passes",
        "--engine",
    ),
    "package": ("--dir", "--model", "--dtype", "--out", "--compress", "--engine"),
    "run": (
        "--bundle",
        "--dir",
        "--model",
        "--dtype",
        "--prompt",
        "--repetition-penalty",
        "--max-tokens",
        "--raw",
        "--threads",
        "--[no-]stats",
        "--stop",
    ),
    "repro": ("--model", "--revision", "--dtype", "--target", "--out"),
    "compare": ("--first", "--second"),
    "rebuild": ("--provenance", "--model", "--out"),
    "sign": ("--bundle", "--key", "--sigstore"),
    "verify": ("--bundle", "--key", "--identity", "--identity-provider"),
    "profile": ("--bundle", "--threads"),
    "check": ("--dir", "--model", "--dtype"),
    "demo": ("--prompt", "--dtype", "--temperature"),
    "bench": ("--bundle", "--model", "--peers", "--repeat", "--threads", "--context", "--out"),
    "peers": (),
    "test": ("--quick",),
    "mutate": ("--sample", "--seed", "--out", "--summary"),
    "lint": (),
    "lock": (),
}


def _inv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words], capture_output=True, text=True, cwd=ROOT
    )


def test_the_list_explains_every_command_in_one_line() -> None:
    lines = [line for line in _inv("--list").stdout.splitlines()[1:] if line.strip()]
    assert sorted(line.split()[0] for line in lines) == sorted(FLAGS)
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("name", FLAGS)
def test_help_explains_every_flag(name: str) -> None:
    words = _inv("-h", name).stdout.split("Options:")[1]
    for flag in (*FLAGS[name], "--quiet", "--debug"):
        assert any(
            line.split()[0].split("=")[0] == flag and len(line.split()) > 2
            for line in words.splitlines()
            if line.strip()
        ), flag


def test_an_error_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    done = _inv("compile", "--dir", str(tmp_path))
    assert done.returncode == 1
    missing = tmp_path / "import" / "model.json"
    assert done.stderr == f"error: {missing} is missing; run inv import first\n"


def test_wrong_words_have_exit_code_2() -> None:
    done = _inv("compile", "--dir", "nowhere", "--target", "pentium")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown target 'pentium'")
    assert _inv("verify").stderr == "error: no bundle was named; give one with --bundle=PATH\n"
    assert _inv("verify").returncode == 2


@pytest.mark.parametrize("name", ["profile", "bench", "run"])
def test_a_count_that_is_none_is_told_in_one_sentence(name: str) -> None:
    done = _inv(name, "--bundle", "nowhere", "--threads", "abc")
    assert done.returncode == 2
    assert "--threads: 'abc' is not a whole number from 1 on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compil", "there is no command 'compil'; did you mean compile?"),
        ("--help compil", "there is no command 'compil'; did you mean compile?"),
        ("zzz", "there is no command 'zzz'; inv --list names them"),
        ("compile --taget x", "there is no flag --taget of compile; did you mean --target?"),
        ("run --no-stat", "there is no flag --no-stat of run; did you mean --no-stats?"),
        ("package --xyzzy", "there is no flag --xyzzy of package; inv --help package lists them"),
        ("--lst", "there is no flag --lst; did you mean --list?"),
        ("lint peer", "there is no command 'peer'; did you mean peers?"),
        ("compile --target", "the flag --target of compile needs a value; inv --help compile expl"),
        (
            "run --prompt --raw",
            "the flag --prompt of run needs a value; inv --help run explains it",
        ),
    ],
)
def test_a_wrong_word_behind_inv_is_one_sentence_with_what_was_meant(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        check_words(tasks.namespace, words.split())
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "", "--list", "--help", "--help compile", "compile --help", "-h compile", "compile -h",
        "compile --target=native --dir x", "import --model a compile --model a run --model a",
        "test", "--complete -- compil", "run --bundle x --prompt - --no-stats",
        "run --bundle x --stop a --stop b --repetition-penalty 2", "-e lint", "lint --quiet",
    ],
)  # fmt: skip
def test_right_words_behind_inv_are_left_to_invoke(words: str) -> None:
    check_words(tasks.namespace, words.split())


def test_inv_itself_tells_a_wrong_word() -> None:
    done = _inv("compile", "--taget", "native")
    assert done.returncode == 2
    assert done.stderr == "error: there is no flag --taget of compile; did you mean --target?\n"


def test_a_traceback_comes_only_with_debug(tmp_path: Path) -> None:
    words = ("compile", "--dir", str(tmp_path))
    assert "Traceback" not in _inv(*words).stderr
    assert "Traceback" in _inv(*words, "--debug").stderr


def test_list_passes_prints_the_pipeline() -> None:
    lines = _inv("compile", "--list-passes").stdout.splitlines()
    assert lines[0] == "define-kernels"
    assert lines[-1].startswith("llc -O3")


def test_list_kernels_prints_every_targets_schedule() -> None:
    lines = _inv("compile", "--list-kernels").stdout.splitlines()
    assert lines[lines.index("linear bf16") + 4].split() == [
        "x86-64-v4+bf16", "mr=12,6,4,2,1", "mc=48", "unroll_k=2", "dot=True"
    ]  # fmt: skip
    assert lines[-5] == "flash, split_kv"


def test_list_kernels_of_a_folder_without_an_import_says_what_to_run(tmp_path: Path) -> None:
    done = _inv("compile", "--list-kernels", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("is missing; run inv import --force again")


def test_list_ops_prints_each_op_with_what_it_means() -> None:
    lines = _inv("import", "--list-ops", "--engine", "local").stdout.splitlines()
    assert len(lines) == len(OPS)
    assert lines[0].split(maxsplit=1) == ["input", "an argument of the program, by name"]
    assert any(line.startswith("silu ") and "x · sigmoid(x)" in line for line in lines)


def test_a_dash_is_taken_as_the_prompt() -> None:
    done = _inv("run", "--bundle", "no-such-bundle", "--prompt", "-")
    assert done.returncode == 1
    assert "no-such-bundle" in done.stderr


def test_flags_reach_the_runtime_as_it_has_them() -> None:
    flags: dict[str, object] = {flag.name.replace("-", "_"): None for flag in RUN}
    flags |= {"raw": True, "json": False, "stats": False, "stop": ["a", "-b"], "prompt": "-"}
    flags |= {"verify": True}
    words = flag_words(RUN, flags)
    assert words == ["--prompt=-", "--raw", "--stop=a", "--stop=-b", "--no-stats"]
    assert flag_words(RUN, {**flags, "raw": False, "stats": True, "stop": []}) == ["--prompt=-"]


@pytest.mark.parametrize(
    ("words", "positional"),
    [
        (["test"], []),
        (["test", "--quick"], []),
        (["test", "lint"], []),
        (["lint", "test"], []),
        (["test", "tests/unit"], ["path"]),
        (["test", "tests/unit", "--quick"], ["path"]),
    ],
)
def test_an_optional_word_of_a_task_is_asked_for_only_where_it_stands(
    words: list[str], positional: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["inv", *words])
    test = Command("test", "run", lambda a: 0, words=(Word("path", "which", is_optional=True),))
    program = Program("inv", "", (test, Command("lint", "check", lambda a: 0)), lambda v: [])
    assert as_task(program, test).positional == positional


def test_one_test_is_run_by_its_name() -> None:
    done = _inv("test", "tests/unit/test_dims.py::test_a_maximum_bounds_both")
    assert (done.returncode, done.stdout.splitlines()[-1][:8]) == (0, "1 passed")


def _aotlm(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from aotlm.driver.main import run; run()", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_aotlm_has_every_task_that_needs_no_checkout() -> None:
    shown = _aotlm("--help").stdout
    for command in PROGRAM.commands:
        assert command.name in FLAGS
        assert f"    {command.name} " in shown
    ours = {"bench", "profile", "peers", "test", "mutate", "lint", "lock"}
    assert {command.name for command in PROGRAM.commands} == FLAGS.keys() - ours


@pytest.mark.parametrize("command", PROGRAM.commands, ids=lambda command: command.name)
def test_every_command_of_aotlm_explains_its_flags_and_has_an_example(command: Command) -> None:
    shown = _aotlm(command.name, "--help").stdout
    for flag in (*FLAGS[command.name], "--quiet", "--debug"):
        assert flag.replace("[no-]", "") in shown
    assert f"\n  aotlm {command.examples[0]}\n" in shown


def test_aotlm_and_inv_say_the_same(tmp_path: Path) -> None:
    words = ("compile", f"--dir={tmp_path}")
    assert _aotlm(*words).stderr == _inv(*words).stderr
    assert _aotlm(*words).returncode == 1
    assert _aotlm("compile", "--list-passes").stdout == _inv("compile", "--list-passes").stdout


def test_the_version_is_one_line_and_with_v_all_that_made_it() -> None:
    assert _aotlm("--version").stdout == f"aotlm {aotlm.__version__}\n"
    lines = _aotlm("--version", "-v").stdout.splitlines()
    assert lines[0] == f"aotlm {aotlm.__version__}"
    assert [line.split()[0] for line in lines[1:3]] == ["commit", "pins"]
    assert f"torch {metadata.version('torch')}" in lines


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["complie"], "there is no command 'complie'; did you mean compile?"),
        (["walk", "--far"], "there is no command 'walk'; --help lists them"),
        (["compile", "--traget=x"], "there is no flag --traget; did you mean --target?"),
        (["run", "--promt", "x"], "there is no flag --promt; did you mean --prompt?"),
        (["run", "--prompt", "two", "words"], "the word 'words' has no meaning here; quote"),
        ([], "no command was given; choose from import, compile, package"),
    ],
)
def test_a_mistyped_word_is_told_what_was_meant(words: list[str], sentence: str) -> None:
    done = _aotlm(*words)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]


def test_invokes_configuration_counts_for_aotlm_too(tmp_path: Path) -> None:
    (tmp_path / "invoke.yaml").write_text("engine: podman\n")
    environment = {name: value for name, value in os.environ.items() if name != "AOTLM_ENGINE"}
    command = [sys.executable, "-c", "from aotlm.driver.main import run; run()", "compile"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stderr == "error: unknown engine 'podman'; known are auto, docker, local\n"


LONG_COMMAND = """
import tempfile, time
from invoke import Context
from aotlm.driver.command import as_task
from aotlm_runtime.cli.command_line import Command, Program

def wait(arguments):
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        time.sleep(60)

command = Command("wait", "wait for a minute", wait)
as_task(Program("inv", "", (command,), list), command)(
    Context(), quiet=False, debug=False
)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_and_nothing_stays(number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", LONG_COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        folder = Path(process.stdout.readline().decode().strip())
        assert folder.is_dir()
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == b""
    assert not folder.exists()
