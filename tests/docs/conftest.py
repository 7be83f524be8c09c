"""The place in which the commands of the docs run: the project, with the demo bundle in it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the project, as someone has it who ran `inv demo`; artifacts go with it."""
    folder = tmp_path_factory.mktemp("docs")
    for path in sorted(ROOT.iterdir()):
        if path.name not in ("artifacts", "runtime") and not path.name.startswith(".git"):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "runtime", folder / "runtime")  # pip builds in it
    demo = [sys.executable, "-m", "invoke", "demo", "--prompt", "Hello"]
    subprocess.run(demo, cwd=folder, check=True, capture_output=True, timeout=900)
    yield folder
    shutil.rmtree(folder)
