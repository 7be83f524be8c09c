"""Fixtures: the demo model through every stage, once, and loaded from the bundle that came out."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import aotlm
import aotlm_runtime
from aotlm_runtime.model import Model

TARGET = "x86-64-v3"


@dataclass(frozen=True)
class Built:
    """What a build leaves: its folder, the bundle as a folder in it, and as an archive."""

    out: Path
    bundle: Path
    archive: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The demo model in f32; removed afterwards, as it takes more than a gigabyte."""
    out = tmp_path_factory.mktemp("e2e") / "demo-f32"
    archive = out.with_name("demo.tar")
    aotlm.build("demo", out, dtype="f32", target=TARGET, archive=archive)
    yield Built(out, out / "bundle", archive)
    shutil.rmtree(out)
    archive.unlink()


@pytest.fixture(scope="session")
def model(built: Built) -> Model:
    """One sequence; a test that counts what is computed rewinds it first."""
    return aotlm_runtime.load(built.bundle)


@pytest.fixture
def spoiled(built: Built, tmp_path: Path) -> Iterator[Path]:
    """A copy of the bundle whose weights may be changed; the other files are links."""
    folder = tmp_path / "spoiled"
    shutil.copytree(built.bundle, folder, copy_function=os.link)
    weights = folder / "weights.safetensors"
    weights.unlink()
    shutil.copyfile(built.bundle / weights.name, weights)
    yield folder
    shutil.rmtree(folder)
