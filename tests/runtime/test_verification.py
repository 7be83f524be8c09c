"""No text before the last byte is verified, and damage is named by its file and place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from blake3 import blake3

import aotlm_runtime
from aotlm_runtime import errors
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.bundle.verification import Block, Progress, Verification
from aotlm_runtime.cli import main as cli
from aotlm_runtime.model import Model
from tests.runtime import fake
from tests.runtime.serving import eventually, serving
from tests.runtime.terminal import ENVIRONMENT
from tests.runtime.test_model import chat_ids, text_after

WEIGHTS = "weights.safetensors"
HEADER = 3 * fake.BLOCK
LAST = HEADER + fake.BLOCK - 1
SLOW_BYTES = 1 << 29


@pytest.fixture
def large(tmp_path: Path, stub: bytes) -> Path:
    """A bundle whose weight file has four blocks; the last holds the weights themselves."""
    return fake.write_bundle(tmp_path / "large", stub, header_bytes=HEADER)


def answer(model: Model) -> str:
    return "".join(model.generate("abc"))


@pytest.mark.parametrize("is_archive", [False, True])
@pytest.mark.parametrize(
    ("offset", "path", "begin"),
    [
        (0, WEIGHTS, 0),  # the header's length, by which the weights are found
        (7, WEIGHTS, 0),
        (2 * fake.BLOCK, WEIGHTS, 2 * fake.BLOCK),
        (HEADER, WEIGHTS, HEADER),
        (LAST, WEIGHTS, HEADER),
        (2 * fake.BLOCK, "lib/test/libaotlm_model.a", 2 * fake.BLOCK),
    ],
)
def test_a_damaged_block_is_named_by_file_and_offset(
    large: Path, tmp_path: Path, offset: int, path: str, begin: int, is_archive: bool
) -> None:
    fake.damage(large, offset, path)
    bundle = fake.write_tar(large, tmp_path / "m.tar") if is_archive else large
    sentence = (
        f"^the block at byte {begin} of '{path}' in {bundle} was edited or damaged: its blake3"
    )
    with pytest.raises(errors.FileChangedError, match=sentence):
        answer(aotlm_runtime.load(bundle))
    with open_bundle(bundle) as opened, pytest.raises(errors.FileChangedError, match=sentence):
        opened.verify()


def test_a_small_file_that_is_not_needed_to_run_is_verified_too(large: Path) -> None:
    fake.damage(large, 0, "lib/test/include/aotlm_model.h")
    with pytest.raises(errors.FileChangedError, match=r"^'lib/test/include/aotlm_model.h' in "):
        answer(aotlm_runtime.load(large))


@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_of_several_damaged_blocks_the_first_is_told_each_time(
    tmp_path: Path, n_threads: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    right = blake3(b"\0").hexdigest()
    with path.open("rb") as file:
        blocks = [
            Block(
                f"block {index}", file.fileno(), index, 1, "blake3", "wrong" if index > 4 else right
            )
            for index in range(64)
        ]
        verifications = [Verification(blocks, n_threads) for _ in range(20)]
    for verification in verifications:  # the file is closed
        for _ in range(2):
            with pytest.raises(errors.FileChangedError, match=r"^block 5 was edited"):
                verification.wait()
        with pytest.raises(errors.FileChangedError, match=r"^block 5 was edited"):
            verification.check()


def test_a_file_that_became_shorter_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        os.truncate(path, 0)
        verification = Verification([Block("'file'", file.fileno(), 0, 3, "sha256", "")])
    with pytest.raises(errors.FileChangedError, match=r"^'file' cannot be read any more: "):
        verification.wait()


def test_verifying_opens_no_file_for_good(large: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open_bundle(large) as opened:
        opened.verify()
        verification = opened.begin_verification()
    verification.wait()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def slow(large: Path) -> Path:
    """A bundle with half a gigabyte of damage, which takes long to hash, in a file."""
    manifest = large / "manifest.json"
    os.truncate(large / "lib/test/include/aotlm_model.h", SLOW_BYTES)
    text = manifest.read_text()
    assert text.count('"size_bytes": 1\n') == 1
    manifest.write_text(text.replace('"size_bytes": 1\n', f'"size_bytes": {SLOW_BYTES}\n'))
    return large


def test_loading_and_computing_go_on_beside_the_verification(slow: Path) -> None:
    model = aotlm_runtime.load(slow)
    model.check_damage()  # it has not ended
    pieces = model.stream(list(b"abc"))
    with pytest.raises(errors.FileChangedError, match=r"aotlm_model\.h"):
        next(pieces)
    assert model.session.tokens == list(b"abc")  # computed, but not given out
    with pytest.raises(errors.FileChangedError, match=r"aotlm_model\.h"):
        model.check_damage()


def test_a_program_that_leaves_early_does_not_wait_for_the_verification(slow: Path) -> None:
    script = (
        "import atexit, aotlm_runtime\n"
        f"model = aotlm_runtime.load({str(slow)!r})\n"
        "model.check_damage()\n"
        "print(model.verification._seconds is None)\n"
        # what is registered runs when Python has waited for the threads that it waits for
        "atexit.register(lambda: print(model.verification._seconds is None))\n"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_who_waits_is_shown_the_bytes(slow: Path) -> None:
    shown: list[tuple[int, list[int]]] = []

    @contextmanager
    def display(n_bytes: int) -> Iterator[Progress]:
        steps: list[int] = []
        shown.append((n_bytes, steps))
        yield steps.append
        steps.append(-1)

    model = aotlm_runtime.load(slow, display=display)
    for _ in range(2):  # the second finds it at its end
        with pytest.raises(errors.FileChangedError):
            answer(model)
    ((n_bytes, steps),) = shown
    assert n_bytes >= SLOW_BYTES
    assert (sum(steps[:-1]), steps[-1]) == (n_bytes, -1)


def test_no_logits_leave_a_session_on_damaged_weights(large: Path) -> None:
    fake.damage(large, HEADER)
    session = aotlm_runtime.load(large).session
    other = session.fork(session.compiled)
    for call in (
        lambda: session.prefill([1, 2]),
        lambda: session.decode(1),
        lambda: next(session.score([1, 2])),
        lambda: other.prefill([1]),
    ):
        with pytest.raises(errors.FileChangedError, match=f"byte {HEADER} of"):
            call()


def test_what_is_not_a_number_is_damage_if_the_weights_are_damaged(large: Path) -> None:
    fake.damage(large, HEADER, byte=0xFF)
    with pytest.raises(errors.LogitsInvalidError):
        answer(aotlm_runtime.load(large, verify=False))
    with pytest.raises(errors.FileChangedError):
        answer(aotlm_runtime.load(large))


@pytest.mark.parametrize(("byte", "is_old"), [(0xFF, False), (5, True)])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--prompt", "abc"], ""),
        (["run", "--prompt", "abc", "--json"], ""),
        (["run", "--raw"], "abc\nabc\n"),
        (["chat"], "abc\n"),
        (["chat"], ""),
        (["perplexity", "-"], "some text"),
        (["perplexity", "-", "--json"], "some text"),
        (["bench"], ""),
        (["verify"], ""),
        (["inspect"], ""),
    ],
)
def test_no_text_leaves_a_damaged_bundle(
    large: Path, words: list[str], said: str, byte: int, is_old: bool
) -> None:
    if is_old:
        fake.as_format1(large)
    fake.damage(large, HEADER, byte=byte)
    command = [sys.executable, "-m", "aotlm_runtime", words[0], str(large), *words[1:]]
    done = subprocess.run(command, input=said, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    block = "" if is_old else f"the block at byte {HEADER} of "
    assert done.stderr.startswith(f"error: {block}'{WEIGHTS}' in {large} was edited or damaged")
    assert done.stderr.count("\n") == 1


def test_a_message_after_which_a_chat_finds_damage_ends_it(large: Path) -> None:
    fake.damage(large, HEADER, byte=5)
    command = [sys.executable, "-m", "aotlm_runtime", "chat", str(large)]
    said = "abc\nabc\n/stats\n"
    done = subprocess.run(command, input=said, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_a_server_answers_with_the_damage(large: Path) -> None:
    fake.damage(large, HEADER, byte=5)
    sentence = f"the block at byte {HEADER} of '{WEIGHTS}' in {large} was edited or damaged"
    with serving(large) as server:
        body = {"messages": [{"role": "user", "content": "abc"}]}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
        assert reply.status_code == 500
        assert reply.json()["error"]["message"].startswith(sentence)
        # a stream has its headers at once: the sentence is all that comes after them
        streamed = httpx.post(
            f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=30
        )
        told = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert sentence in told[-1]
        assert "content" not in "".join(told[:-1]).replace('"content":""', "")
        assert eventually(lambda: httpx.get(f"{server.url}/health").status_code == 500)
        assert server.process.stderr is not None
        assert server.process.stderr.readline().startswith(f"error: {sentence}")
        assert server.stop() == (0, "")


def test_a_bundle_of_format_1_is_answered_verified_and_inspected(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.as_format1(large)
    archive = fake.write_tar(large, tmp_path / "m.tar")
    for path in (large, archive):
        assert answer(aotlm_runtime.load(path)) == text_after(chat_ids("abc"))
        assert cli.main(["verify", str(path)]) == 0
        assert "all as its manifest says" in capsys.readouterr().out
        assert cli.main(["inspect", str(path)]) == 0
        assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_verification_a_note_says_so(
    large: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.damage(large, LAST)  # nothing reads this byte
    assert cli.main(["run", str(large), "--prompt", "abc", "--no-verify", *more]) == 0
    out, err = capsys.readouterr()
    assert text_after(chat_ids("abc")) in out
    assert err.startswith("note: the weights are not verified, as --no-verify asks; ")
    assert ("not verified, loaded in" in err) is (not more)
    assert ('"verify_seconds": null' in out) is bool(more)


def test_without_verification_what_runs_is_still_verified(large: Path) -> None:
    fake.damage(large, 100, "tokenizer/tokenizer.json", byte=0)
    with pytest.raises(errors.FileChangedError, match=r"tokenizer\.json"):
        aotlm_runtime.load(large, verify=False)


def test_every_command_that_loads_can_leave_verification_out(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.damage(large, LAST)
    text = tmp_path / "text"
    text.write_text("some text")
    assert cli.main(["perplexity", str(large), str(text), "--no-verify"]) == 0
    assert "perplexity" in capsys.readouterr().out
    command = [sys.executable, "-m", "aotlm_runtime", "chat", str(large), "--no-verify"]
    done = subprocess.run(command, input="abc\n", env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, text_after(chat_ids("abc")) + "\n")
    with serving(large, "--no-verify") as server:
        assert server.health()["status"] == "ok"
        assert server.lines[0].startswith("note: the weights are not verified")
    assert cli.main(["bench", "--help"]) == 0
    assert "--no-verify" in capsys.readouterr().out
