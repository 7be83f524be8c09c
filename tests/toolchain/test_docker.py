"""The real engine: both engines give the same bytes, and a bundle answers from its own image."""

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import docker
import pexpect
import pytest
from docker.models.images import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import aotlm_runtime
from aotlm.driver import container as stage_container
from aotlm.targets import resolve_target
from aotlm.toolchain.engine import Settings
from aotlm.toolchain.images import find_toolchain
from aotlm_runtime.bundle.manifest import read_model_file
from tests.toolchain.conftest import ROOT, inv
from tests.unit.checkpoints import saved

TARGET = "x86-64-v3"
ARCHIVE = "tiny-f16/tiny-f16.tar"
USER = 12345  # whom neither this machine nor the image knows
# the toolchain image is built by the first test that wants it
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of another user's, with a space and an umlaut, and a tiny model in it."""
    work = tmp_path_factory.mktemp("wörk here")
    saved(work / "tiny", vocab_size=300)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(work / "tiny")
    return work


@pytest.fixture(scope="module")
def built(work: Path, toolchain: Image) -> dict[str, Path]:
    """The same model built in the same words by both engines: the folders by engine."""
    return {engine: _build(work, engine) for engine in ("docker", "local")}


def _build(work: Path, engine: str) -> Path:
    folder = work / engine
    folder.mkdir()
    stages = (
        ("import", "--model=../tiny", "--out=tiny-f16"),
        ("compile", "--dir=tiny-f16", f"--target={TARGET}"),
        ("package", "--dir=tiny-f16"),
    )
    for stage in stages:
        done = inv(*stage, f"--engine={engine}", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert (f"engine: {engine}, aotlm-toolchain:" in done.stderr) == (engine == "docker")
        shown = [line for line in done.stderr.splitlines() if line.startswith(stage[0])]
        assert shown, "progress is streamed through"
    return folder


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_both_engines_make_the_same_bytes(built: dict[str, Path]) -> None:
    digests = {engine: _sha256(folder / ARCHIVE) for engine, folder in built.items()}
    print(digests)
    assert digests["docker"] == digests["local"]


def test_files_belong_to_the_caller(built: dict[str, Path]) -> None:
    made = sorted(built["docker"].rglob("*"))
    assert {path.stat().st_uid for path in made} == {os.getuid()}
    assert {path.stat().st_gid for path in made} == {os.getgid()}


def test_a_caller_with_another_umask_gets_the_same_modes(
    work: Path, built: dict[str, Path]
) -> None:
    modes = {}
    for engine in ("docker", "local"):
        folder = work / f"private {engine}"
        folder.mkdir()
        shutil.copytree(built["local"] / "tiny-f16", folder / "tiny-f16")
        shutil.rmtree(folder / "tiny-f16" / "bundle")
        before = os.umask(0o027)
        try:
            done = inv("package", "--dir=tiny-f16", f"--engine={engine}", cwd=folder)
        finally:
            os.umask(before)
        assert done.returncode == 0, done.stderr
        made = [*(folder / "tiny-f16" / "bundle").rglob("*"), folder / ARCHIVE]
        modes[engine] = {str(path.relative_to(folder)): path.stat().st_mode for path in made}
    assert modes["docker"] == modes["local"]
    assert modes["docker"][ARCHIVE] & 0o777 == 0o640


def test_on_a_terminal_the_bars_are_drawn_and_the_answer_stays_apart(
    built: dict[str, Path],
) -> None:
    """Only stderr is a terminal here."""
    words = ["compile", "--dir=tiny-f16", f"--target={TARGET}", "--engine=docker"]
    command = [sys.executable, "-m", "invoke", f"--search-root={ROOT}", *words]
    child = pexpect.spawn(
        "/bin/sh", ["-c", f"exec {shlex.join(command)} >answer"],
        cwd=built["docker"], encoding="utf-8", timeout=300, dimensions=(24, 91),
    )  # fmt: skip
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    first, *parts = child.before.split("\r")
    assert first.startswith("engine: docker, ")
    bars = [part for part in parts if "|" in part]
    assert len(bars) > 1
    assert {len(bar) for bar in bars} == {90}  # the last column stays free
    assert all(bar.startswith("compile: ") for bar in bars)
    assert parts[-2].strip() + parts[-1] == ""  # the bar is gone in the end
    answer = (built["docker"] / "answer").read_text()
    assert answer.startswith(f"compiled lib/{TARGET}/libaotlm_model.so in tiny-f16 for the CPU")
    assert "\r" not in answer


def test_native_is_the_same_cpu_inside(toolchain: Image, engine: docker.DockerClient) -> None:
    words = "from aotlm.targets import resolve_target; print(resolve_target('native').name)"
    inside = engine.containers.run(
        toolchain.id, ["-c", words], entrypoint="python", network_mode="none", remove=True
    )
    assert inside.decode().strip() == resolve_target("native").name


def test_the_image_holds_the_compiler_and_no_test_tools(
    toolchain: Image, engine: docker.DockerClient
) -> None:
    words = "import torch, transformers, mlir.ir, importlib.util as u; print(u.find_spec('pytest'))"
    inside = engine.containers.run(
        toolchain.id, ["-c", words], entrypoint="python", network_mode="none", remove=True
    )
    assert inside.decode().strip() == "None"


def test_a_second_time_is_a_hit_in_seconds(toolchain: Image) -> None:
    start = time.monotonic()
    done = inv("toolchain", "--engine=docker")
    assert time.monotonic() - start < 5
    assert done.stdout.startswith(f"{toolchain.tags[0]} is there already, ")


def test_a_model_of_the_hub_is_read_from_this_machines_cache(work: Path, toolchain: Image) -> None:
    commit, cache = "0123456789" * 4, work / "hub"
    kept = cache / "models--owner--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    (kept / "blobs").mkdir()
    (kept / "snapshots" / commit).mkdir(parents=True)
    for path in sorted((work / "tiny").iterdir()):
        shutil.copy(path, kept / "blobs" / path.name)
        (kept / "snapshots" / commit / path.name).symlink_to(f"../../blobs/{path.name}")
    words = ("import", "--engine=docker", "--dtype=f32", "--out=from hub")
    offline = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = inv(*words, "--model=owner/tiny", cwd=work, **offline)
    assert done.returncode == 0, done.stderr
    model = read_model_file(work / "from hub" / "import" / "model.json").model
    assert (model.source, model.revision) == ("owner/tiny", commit)
    links = kept / "snapshots" / commit
    done = inv(*words, f"--model={links}", "--force", cwd=work)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_users_files_are_his(
    work: Path, toolchain: Image, engine: docker.DockerClient
) -> None:
    folder = work / "of another user"
    folder.mkdir()
    os.chown(folder, USER, USER)
    (work / "tiny" / "model.safetensors").chmod(0o644)  # transformers makes it its owner's alone
    script = (
        "import os, sys; from aotlm.toolchain.container import run_in_container as run; "
        "from aotlm.toolchain.engine import connect; from pathlib import Path; client = connect(); "
        f"os.setgroups([{_socket_group(engine)}]); os.setgid({USER}); os.setuid({USER}); "
        f"sys.exit(run(client, sys.argv[1], ['import', '--model={work}/tiny', '--out={folder}'], "
        f"[Path({str(work / 'tiny')!r})], [Path({str(folder)!r})], {{}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, toolchain.tags[0]],
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in folder.rglob("*")} == {USER}


def _socket_group(engine: docker.DockerClient) -> int:
    """The group that may speak to the engine."""
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    return os.stat(path).st_gid


def test_an_error_inside_is_the_same_sentence_and_exit_code(
    toolchain: Image, tmp_path: Path
) -> None:
    for words, code in (
        (("import", "--model=nowhere/at all"), 2),
        (("compile", "--dir=nothing"), 1),
    ):
        inside, outside = (
            inv(*words, f"--engine={engine}", cwd=tmp_path) for engine in ("docker", "local")
        )
        assert (inside.returncode, outside.returncode) == (code, code), inside.stderr
        assert inside.stderr.splitlines()[1:] == outside.stderr.splitlines()
        assert not list(tmp_path.rglob("*.tmp"))


def test_a_container_sees_the_model_alone_and_an_interrupt_stops_it(
    work: Path, toolchain: Image, engine: docker.DockerClient
) -> None:
    folder = work / "interrupted"
    folder.mkdir()
    command = [sys.executable, "-m", "invoke", f"--search-root={ROOT}", "import"]
    words = ["--model=../tiny", "--out=out", "--engine=docker"]
    child = subprocess.Popen([*command, *words], cwd=folder, stderr=subprocess.PIPE)
    for _ in range(600):
        if running := engine.containers.list(filters={"ancestor": toolchain.id}):
            break
        time.sleep(0.1)
    (container,) = running
    seen = {mount["Destination"]: mount["RW"] for mount in container.attrs["Mounts"]}
    assert seen == {f"{work}/tiny": False, f"{folder}/out": True}
    assert container.attrs["HostConfig"]["NetworkMode"] == "none"
    time.sleep(1)  # it imports torch
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert not engine.containers.list(all=True, filters={"ancestor": toolchain.id})
    assert not list(folder.rglob("*"))


def test_a_bundle_answers_from_its_own_small_image(
    built: dict[str, Path], engine: docker.DockerClient
) -> None:
    bundle, name = built["docker"] / ARCHIVE, "aotlm-test-tiny:latest"
    done = inv("image", f"--bundle={bundle}", f"--tag={name}")
    assert done.returncode == 0, done.stderr
    try:
        size_bytes = engine.images.get(name).attrs["Size"]
        print(f"{name}: {size_bytes / 1e6:.0f} MB")
        assert size_bytes <= bundle.stat().st_size + 250e6
        docker_cli = shutil.which("docker")
        assert docker_cli
        words = ["run", "--prompt", "-", "--raw", "--max-tokens", "8", "--no-stats"]
        answer = subprocess.run(
            [docker_cli, "run", "--rm", "-i", "--network=none", name, *words],
            input="Hello", capture_output=True, text=True,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        model = aotlm_runtime.load(bundle)
        options = aotlm_runtime.GenerationOptions(max_tokens=8)
        assert answer.stdout == "".join(model.generate("Hello", options, raw=True)) + "\n"
    finally:
        engine.images.remove(name, force=True)


def test_auto_takes_docker_where_it_has_the_image(work: Path, toolchain: Image) -> None:
    done = inv("compile", "--dir=nothing", cwd=work, AOTLM_ENGINE="auto")
    assert done.stderr.startswith(f"engine: docker, {toolchain.tags[0]}\nerror: ")


def test_auto_stays_here_and_says_so_where_no_image_is_built(
    engine: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stage_container, "find_toolchain", lambda client: None)
    assert stage_container.run_stage("compile", {"dir": None}, Settings("auto", None)) is None
    assert capsys.readouterr().err.startswith("engine: this machine (Docker has no image")


def test_the_present_inputs_find_their_image(toolchain: Image, engine: docker.DockerClient) -> None:
    found = find_toolchain(engine)
    assert found is not None
    assert found.id == toolchain.id
