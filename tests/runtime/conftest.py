"""Fixtures: the compiled stub, a bundle around it, the model loaded from that."""

from pathlib import Path

import pytest

import aotlm_runtime
from aotlm_runtime.model import Model
from tests.runtime import fake


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
