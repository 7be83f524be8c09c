"""A context that needs more memory than there is: one sentence with both sizes, before any call."""

import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import aotlm_runtime
from aotlm_runtime import errors
from aotlm_runtime.bundle import manifest as schema
from aotlm_runtime.host import memory, room
from aotlm_runtime.model import Model
from aotlm_runtime.server import capacity
from tests.runtime import fake

MIB = 1 << 20
LIMIT = 1400 * MIB


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A bundle whose cache has 16 MiB for each token: 4 GiB for its context."""
    per_token = schema.Bytes(C=16 * MIB)
    state = [msgspec.structs.replace(fake.abi().state[0], size_bytes=per_token)]
    abi = fake.abi(state=state, state_bytes=per_token)
    fake.compile_stub(tmp_path / "stub.so", abi)
    folder = fake.write_bundle(tmp_path / "wide", (tmp_path / "stub.so").read_bytes())
    path = folder / "manifest.json"
    manifest = schema.decode_manifest(path.read_bytes(), "m")
    path.write_bytes(schema.encode(msgspec.structs.replace(manifest, abi=abi)))
    return folder


def run_limited(bundle: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "aotlm_runtime", "run", str(bundle), "--prompt", "abc", *words]
    return subprocess.run(
        [*command, "--max-tokens", "3", "--no-stats"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )


def test_under_a_limit_of_addresses_a_context_is_refused_with_both_sizes(wide: Path) -> None:
    done = run_limited(wide)
    assert done.returncode == 1
    assert done.stdout == ""
    left, _, rest = done.stderr.partition(" of memory, but ")
    assert left.startswith("error: a context of 200 tokens needs 4,0")
    assert rest.endswith(
        "MiB are left; choose a shorter context, or give the process more memory\n"
    )
    assert run_limited(wide, "--context", "30").returncode == 0


def test_beyond_the_machines_memory_a_context_is_refused(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 3000 * MIB)
    with pytest.raises(errors.MemoryInsufficientError, match=r"4,0\d\d MiB .*, but 3,000 MiB are"):
        aotlm_runtime.load(wide)
    assert aotlm_runtime.load(wide, context=100).context_length == 100


def test_an_answer_beside_others_needs_room_for_its_own_cache(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = model.generate("abc")
    begun = next(first)
    monkeypatch.setattr(room, "available_bytes", lambda: 1000)
    with pytest.raises(errors.MemoryInsufficientError, match="one more context of 200 tokens"):
        next(model.generate("abd"))
    assert begun + "".join(first) == "".join(model.generate("abc"))


def test_sessions_that_were_asked_for_need_room(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = model.session.size_bytes
    monkeypatch.setattr(capacity, "available_bytes", lambda: 5 * size)
    monkeypatch.setattr(room, "available_bytes", lambda: 5 * size)
    assert capacity.count_sessions(5, model.session) == 5
    with pytest.raises(errors.MemoryInsufficientError, match="200 tokens for 6 sessions needs"):
        capacity.count_sessions(6, model.session)
    assert capacity.count_sessions(None, model.session) == 2


def test_a_buffer_that_the_kernel_refuses_is_told_with_its_size() -> None:
    with pytest.raises(errors.MemoryInsufficientError, match="a buffer needs 1,073,741,824 MiB"):
        memory.zeros(1 << 50)
