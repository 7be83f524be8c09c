"""The workflows: pinned, with the least permissions, and every step's command runs here too.

No runner is at hand, so a job's `inv` lines are run in order, for a tiny model in the place of the
real one; what the upload and download actions do is done by copying. A line that was run already is
not run again, as the workflows share their build.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.mutation.areas import AREAS
from tests.unit.checkpoints import SIZES, saved

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
START = "./bootstrap inv "
# What ci.yml runs is this very suite; tests/unit/test_mutation.py tries a fault.
NOT_AGAIN = ("lint", "test", "mutate")
Job = dict[str, Any]


def _load(path: Path) -> dict[str, Any]:
    """YAML 1.1 takes the key `on` for the value true."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    workflow["on"] = workflow.pop(True)
    return dict(workflow)


def _jobs() -> list[tuple[str, str, Job, Mapping[str, str]]]:
    """Each job as its workflow's name, its own, itself, and the workflow's environment."""
    return [
        (path.stem, name, job, _load(path).get("env", {}))
        for path in WORKFLOWS
        for name, job in _load(path)["jobs"].items()
    ]


JOBS = _jobs()
IDS = [f"{workflow}-{name}" for workflow, name, _, _ in JOBS]
STEPS = [step for _, _, job, _ in JOBS for step in job["steps"]]


class Runner:
    """Runs the steps of jobs in one folder, each command once."""

    def __init__(self, folder: Path, model: Path, key: Path) -> None:
        self.folder, self.key = folder, key
        self.env = {"MODEL": str(model), "DTYPE": "f16", "TARGET": "x86-64-v3"}
        self.done: set[str] = set()
        self.uploaded: dict[str, Path] = {}

    def run_job(self, job: Job) -> None:
        for step in job["steps"]:
            if "run" in step:
                self.run(step["run"])
            elif step["uses"].startswith("actions/upload-artifact@"):
                self.upload(step["with"]["name"], self.folder / step["with"]["path"])
            elif step["uses"].startswith("actions/download-artifact@"):
                shutil.copytree(
                    self.uploaded[step["with"]["name"]], self.folder / step["with"]["path"]
                )

    def run(self, line: str) -> None:
        """Run a line with this folder as the checkout's; a key stands for sigstore's identity."""
        if line in self.done:
            return
        words = shlex.split(line.removeprefix(START))
        words = [re.sub(r"\$(\w+)", lambda name: self.env[name[1]], word) for word in words]
        words = [f"--key={self.key}" if word == "--sigstore" else word for word in words]
        command = [sys.executable, "-m", "invoke", f"--search-root={ROOT}", *words]
        env = {**os.environ, "AOTLM_ENGINE": "local"}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        self.done.add(line)

    def upload(self, name: str, path: Path) -> None:
        """Keep a file as the artifact: the same for each value of a matrix, which builds once."""
        assert path.is_file()
        for value in ("ubuntu-24.04", "ubuntu-22.04"):
            folder = self.folder / "uploaded" / name.replace("${{ matrix.runner }}", value)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
            self.uploaded[folder.name] = folder


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("a runner")
    model = folder / "tiny"
    saved(model)
    words = {f"word{number}": number for number in range(SIZES["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="word3").save_pretrained(model)
    key = folder / "key.pem"
    command = ("openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", str(key))
    subprocess.run(command, check=True, capture_output=True)
    yield Runner(folder, model, key)
    shutil.rmtree(folder / "artifacts", ignore_errors=True)  # it holds an image of a gigabyte


@pytest.mark.parametrize(
    "step", STEPS, ids=[str(step.get("run", step.get("uses"))) for step in STEPS]
)
def test_a_step_is_a_pinned_action_or_one_inv_command(step: dict[str, Any]) -> None:
    if "uses" in step:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
    else:
        line = step["run"]
        assert line.startswith(START)
        assert not set(";&|\n`<>").intersection(line)
        assert "${{" not in line  # values come as variables: no text of a user is run
        task = shlex.split(line)[2]
        if task in ("compile", "repro"):
            assert "--target=$TARGET" in shlex.split(line)


def test_every_action_names_its_version_beside_the_commit() -> None:
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "uses:" in line:
                assert re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_grants_nothing_that_a_job_does_not_need(path: Path) -> None:
    workflow = _load(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        granted = dict(job["permissions"])
        assert granted.pop("contents") == "read"
        uses = " ".join(step.get("uses", "") + step.get("run", "") for step in job["steps"])
        assert granted == (
            {"id-token": "write", "attestations": "write"} if "attest-build" in uses else {}
        ), name
        assert job["timeout-minutes"] <= 120


@pytest.mark.parametrize(("workflow", "name", "job", "env"), JOBS, ids=IDS)
def test_the_target_is_explicit_and_torch_comes_from_a_variable(
    workflow: str, name: str, job: Job, env: Mapping[str, str]
) -> None:
    values = {**env, **job.get("env", {})}
    assert values["PIP_EXTRA_INDEX_URL"] == "${{ vars.PYTORCH_CPU_INDEX_URL }}"
    if any("$TARGET" in step.get("run", "") for step in job["steps"]):
        assert values["TARGET"] in ("x86-64-v3", "${{ inputs.target }}")


@pytest.mark.parametrize(("workflow", "name", "job", "env"), JOBS, ids=IDS)
def test_the_jobs_run_here_in_their_order(
    workflow: str,
    name: str,
    job: Job,
    env: Mapping[str, str],
    runner: Runner,
    request: pytest.FixtureRequest,
) -> None:
    lines = [step["run"] for step in job["steps"] if "run" in step]
    tasks = {shlex.split(line)[2] for line in lines}
    if tasks <= set(NOT_AGAIN):
        listed = subprocess.run(
            [sys.executable, "-m", "invoke", "--list"], cwd=ROOT, capture_output=True, text=True
        ).stdout.split()
        assert tasks <= set(listed)
        return
    if any("--engine=docker" in line for line in lines):
        request.getfixturevalue("engine")
    runner.run_job(job)
    assert set(lines) <= runner.done


def test_a_cache_has_the_key_of_all_that_its_images_are_made_from() -> None:
    """What else changes an environment is its base, which is a pin too."""
    inputs = ("docker/pins.toml", "docker/requirements.lock", "docker/environment.Dockerfile")
    steps = [step for step in STEPS if step.get("uses", "").startswith("actions/cache@")]
    assert steps
    for step in steps:
        key = step["with"]["key"]
        assert "restore-keys" not in step["with"]
        assert re.findall(r"'([^']+)'", key[key.index("hashFiles(") :]) == list(inputs)
        assert any(f"--cache={path}" in line["run"] for path in step["with"]["path"].split()
                   for line in STEPS if "run" in line)  # fmt: skip
    assert all((ROOT / path).is_file() for path in inputs)


def test_every_folder_that_has_mutation_tests_is_mutated_weekly() -> None:
    job = next(job for workflow, _, job, _ in JOBS if workflow == "mutation")
    assert job["strategy"]["matrix"]["folder"] == [area.path for area in AREAS]


def test_inv_lint_checks_the_workflows() -> None:
    from aotlm.toolchain.lint import CHECKS

    programs = [check[0] for check in CHECKS]
    assert {"check-jsonschema", "zizmor"} <= set(programs)
    for program in ("check-jsonschema", "zizmor"):
        assert os.access(Path(sys.executable).with_name(program), os.X_OK)


@pytest.mark.parametrize(
    ("change", "program"),
    [
        (("runs-on: ubuntu-24.04", "runs-onn: ubuntu-24.04"), "check-jsonschema"),
        (('--model="$MODEL"', "--model=${{ inputs.model }}"), "zizmor"),
        (("@de0fac2e4500dabe0009e67214ff5f5447ce83dd", "@v6"), "zizmor"),
    ],
)
def test_the_linters_find_a_planted_mistake(
    change: tuple[str, str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aotlm.toolchain import lint

    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    text = (ROOT / ".github" / "workflows" / "bundle.yml").read_text()
    monkeypatch.setattr(lint, "DOCKER_DIR", tmp_path / "docker")
    check = next(check for check in lint.CHECKS if check[0] == program)
    for content, passes in ((text, True), (text.replace(*change), False)):
        (folder / "bundle.yml").write_text(content)
        done = subprocess.run(lint._command(check), cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode == 0) == passes, done.stdout + done.stderr
