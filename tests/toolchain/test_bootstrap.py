"""./bootstrap on a copy of the project with an empty lock, so that nothing is downloaded."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one empty package each, in a folder with a space and an umlaut."""
    root = tmp_path / "a spacé"
    for folder, name in ((root, "aotlm"), (root / "runtime", "aotlm-runtime")):
        package = folder / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["setuptools"]\n'
            'build-backend = "setuptools.build_meta"\n'
            f'[project]\nname = "{name}"\nversion = "0.1"\n'
            f'[tool.setuptools]\npackages = ["{package.name}"]\n'
        )
    (root / "docker").mkdir()
    (root / "docker" / "requirements.lock").write_text("# empty\n")
    shutil.copy(ROOT / "bootstrap", root)
    return root


@pytest.fixture(scope="module", autouse=True)
def setuptools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The lock brings setuptools; these projects' empty lock does not, so it is lent to them."""
    lent = tmp_path_factory.mktemp("setuptools")
    site = Path(sysconfig.get_paths()["purelib"])
    for folder in (*site.glob("setuptools*"), site / "_distutils_hack"):
        shutil.copytree(folder, lent / folder.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(lent))
        yield


def _bootstrap(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "bootstrap", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **env},
        timeout=300,
    )


def test_it_prepares_once_and_then_only_runs_the_command(project: Path) -> None:
    show = ("python", "-c", "import aotlm, sys; print(sys.prefix, *sys.argv[1:])", "two words", "x")
    first = _bootstrap(project, *show)
    assert first.stdout == f"{project / '.venv'} two words x\n", first.stderr
    assert len(first.stderr.splitlines()) == 1
    assert first.stderr.startswith("preparing ")
    second = _bootstrap(project, *show)
    assert (second.stdout, second.stderr) == (first.stdout, "")
    assert _bootstrap(project, "sh", "-c", "exit 7").returncode == 7


def test_it_prepares_again_when_the_lock_changed_or_it_was_interrupted(project: Path) -> None:
    _bootstrap(project)
    with (project / "docker" / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert _bootstrap(project).stderr.startswith("preparing ")
    (project / ".venv" / ".aotlm-lock").unlink()
    assert _bootstrap(project).stderr.startswith("preparing ")
    shutil.rmtree(project / ".venv" / "lib")
    (project / ".venv" / ".aotlm-lock").unlink()
    assert _bootstrap(project, "python", "-c", "import aotlm").returncode == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_copy_of_the_tree_runs_its_own_sources(project: Path, is_whole: bool) -> None:
    _bootstrap(project)
    if not is_whole:
        (project / ".venv" / ".aotlm-lock").unlink()
    copy = project.with_name("a copy")
    shutil.copytree(project, copy, symlinks=True)
    (copy / "aotlm" / "__init__.py").write_text("edited = True")
    show = ("python", "-c", "import aotlm; print(aotlm.__file__, aotlm.edited)")
    done = _bootstrap(copy, *show)
    assert done.stdout == f"{copy / 'aotlm' / '__init__.py'} True\n", done.stderr
    assert done.stderr.startswith(f"{copy / '.venv'} was made in another folder and is made anew\n")
    scripts = [path for path in (copy / ".venv" / "bin").iterdir() if path.is_file()]
    assert not [path for path in scripts if f"{project}/" in path.read_text(errors="replace")]
    assert _bootstrap(copy, "true").stderr == ""
    assert (_bootstrap(project, "true").stderr == "") == is_whole


def test_a_missing_torch_names_the_variable_to_set(project: Path) -> None:
    lock = f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n"
    (project / "docker" / "requirements.lock").write_text(lock)
    done = _bootstrap(project, "true", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: pip found no matching torch; set PIP_EXTRA_INDEX_URL")
    assert "http" not in done.stderr


def test_without_python_3_11_it_is_one_sentence(project: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "cut", "dirname", "mktemp", "rm", "sed", "sha256sum", "grep", "tail"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    done = _bootstrap(project, "true", PATH=str(tools))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: Python 3.11 with its venv module")
