"""Fixtures: the compiled stub, a bundle around it, the model loaded from that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import aotlm_runtime
from aotlm_runtime.model import Model
from tests.runtime import fake
from tests.runtime.serving import Server, serving

SLOW_SECONDS = 0.02  # a call of the slow stub; its answers never end before the context does


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("stub") / "stub.so"
    fake.compile_stub(path, fake.abi())
    return path.read_bytes()


@pytest.fixture
def bundle(tmp_path: Path, stub: bytes) -> Path:
    return fake.write_bundle(tmp_path / "bundle", stub)


@pytest.fixture
def model(bundle: Path) -> Model:
    return aotlm_runtime.load(bundle, threads=2)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory, stub: bytes) -> Iterator[Server]:
    """A server whose calls take no time."""
    with serving(fake.write_bundle(tmp_path_factory.mktemp("fast"), stub)) as server:
        yield server


@pytest.fixture(scope="module")
def slow_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    library = folder / "stub.so"
    numbers = {"END_EVERY": 1 << 30, "DELAY_MICROSECONDS": round(SLOW_SECONDS * 1e6)}
    fake.compile_stub(library, fake.abi(), **numbers)
    return fake.write_bundle(folder / "bundle", library.read_bytes())
