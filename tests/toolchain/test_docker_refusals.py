"""What can go wrong with Docker: one sentence each, and no image under a final name."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound
from docker.models.images import Image

from aotlm.errors import AotlmError
from aotlm.support.progress import silent
from aotlm.toolchain.base_image import check_python, find_base
from aotlm.toolchain.engine import connect, read_settings
from aotlm.toolchain.image_build import build_image, bytes_member
from aotlm.toolchain.images import BASE_NAME, ensure_toolchain
from aotlm.toolchain.pins import read_pins
from tests.toolchain.conftest import SMALL_BYTES, inv

NAME = "aotlm-test-refused:latest"


@pytest.fixture
def base(toolchain: Image) -> str:
    """The name of the base image that the toolchain image was built from."""
    return str(toolchain.labels[BASE_NAME])


@pytest.fixture
def cleared(engine: docker.DockerClient) -> Iterator[None]:
    yield
    with contextlib.suppress(ImageNotFound):
        engine.images.remove(NAME, force=True)


def _build(engine: docker.DockerClient, folder: Path, base: str, *lines: str) -> Image:
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text("\n".join(["ARG BASE_IMAGE", "FROM ${BASE_IMAGE}", *lines]) + "\n")
    return build_image(engine, dockerfile, [], base, {}, NAME, silent)


def _assert_unnamed(engine: docker.DockerClient) -> None:
    with pytest.raises(ImageNotFound):
        engine.images.get(NAME)


def test_no_engine_is_one_sentence(tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/no.sock"
    done = inv("toolchain", "--engine=docker", DOCKER_HOST=where)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no Docker engine answers at {where}; start one")
    assert len(done.stderr.splitlines()) == 1


def test_auto_takes_this_machine_without_an_engine_and_says_so(tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/no.sock"
    done = inv(
        "compile", "--dir=nothing", cwd=tmp_path,
        AOTLM_ENGINE="auto", DOCKER_HOST=where,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert lines[0] == f"engine: this machine (no Docker engine answers at {where})"
    assert lines[1].startswith("error: nothing/import/model.json is missing")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_an_engine_that_does_not_let_the_user_in_is_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("s") / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0o600)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        os.seteuid(12345)
        try:
            with pytest.raises(AotlmError, match="does not let this user in; add the user to"):
                connect()
        finally:
            os.seteuid(0)


def test_an_unknown_engine_is_a_wrong_word() -> None:
    done = inv("toolchain", "--engine=podman")
    assert (done.returncode, done.stderr) == (
        2, "error: unknown engine 'podman'; known are auto, docker, local\n",
    )  # fmt: skip


def test_the_flag_comes_before_the_variable_and_that_before_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AOTLM_ENGINE")
    monkeypatch.delenv("AOTLM_BASE_IMAGE", raising=False)
    assert read_settings({}).engine == "auto"
    assert read_settings({"engine": "docker"}).engine == "docker"
    monkeypatch.setenv("AOTLM_ENGINE", "local")
    assert read_settings({"engine": "docker"}).engine == "local"
    assert read_settings({"engine": "docker"}, "auto").engine == "auto"
    assert read_settings({"base_image": "here"}).base_image == "here"


def test_a_base_without_the_pinned_python_is_refused(
    engine: docker.DockerClient, base: str, tmp_path: Path, cleared: None
) -> None:
    python = "RUN printf '#!/bin/sh\\necho 3.12\\n' >/py && chmod +x /py && mv /py $(which python3)"
    _build(engine, tmp_path, base, python)
    with pytest.raises(AotlmError, match=r"has Python 3\.12 as python3, wanted is 3\.11; name"):
        check_python(engine, find_base(engine, NAME), read_pins().python)
    _build(engine, tmp_path, base, "RUN rm $(which python3)")
    done = inv("toolchain", "--engine=docker", f"--base-image={NAME}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: the base image {NAME} has Python none")


def test_a_base_that_cannot_be_pulled_is_one_sentence(engine: docker.DockerClient) -> None:
    done = inv("toolchain", "--engine=docker", "--base-image=127.0.0.1:1/none:1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the base image 127.0.0.1:1/none:1 cannot be pulled (")
    done = inv("toolchain", "--engine=docker", "--base-image=No Image")
    assert done.returncode == 1
    assert "'No Image'" in done.stderr


def test_a_pinned_base_that_the_registry_has_no_more_is_one_sentence(
    engine: docker.DockerClient,
) -> None:
    """A registry of this test's own: it has the repository, and not this digest."""
    registry = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    name = f"127.0.0.1:{registry.server_port}/python:3.11@sha256:{'0' * 64}"
    try:
        done = inv("toolchain", "--engine=docker", f"--base-image={name}")
    finally:
        registry.shutdown()
        registry.server_close()
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the registry has nothing under {name} any more: the tag")
    assert len(done.stderr.splitlines()) == 1


class _Registry(BaseHTTPRequestHandler):
    """Answers as the registry's API does for what it has not got."""

    def do_GET(self) -> None:
        is_root = self.path.rstrip("/") == "/v2"
        body = b"{}" if is_root else b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
        self.send_response(200 if is_root else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


def test_a_base_that_moved_is_not_followed(
    engine: docker.DockerClient, toolchain: Image, base: str, tmp_path: Path, cleared: None
) -> None:
    before = engine.images.get(base)
    _build(engine, tmp_path, base, "LABEL moved=yes").tag(base)
    try:
        with pytest.raises(AotlmError, match=f"the base image {base} moved: it is sha256:"):
            ensure_toolchain(engine, base, silent)
    finally:
        before.tag(base)


def test_a_full_disk_is_one_sentence(
    engine: docker.DockerClient, base: str, tmp_path: Path
) -> None:
    with pytest.raises(AotlmError, match="the disk of the Docker engine is full; make room"):
        _build(engine, tmp_path, base, "RUN dd if=/dev/zero of=/dev/full count=1")
    _assert_unnamed(engine)


def test_a_full_temporary_folder_is_one_sentence(
    engine: docker.DockerClient, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM scratch\nCOPY data /\n")
    data = bytes_member("data", bytes(2 * SMALL_BYTES))
    where = f"could not be written to {small_disk} (No space left on device)"
    with pytest.raises(AotlmError, match=re.escape(where)):
        build_image(engine, dockerfile, [data], "unused", {}, NAME, silent)
    _assert_unnamed(engine)


def test_a_failed_step_shows_its_last_lines_without_colours(
    engine: docker.DockerClient, base: str, tmp_path: Path
) -> None:
    with pytest.raises(AotlmError, match="was not built: ") as caught:
        _build(engine, tmp_path, base, "RUN echo it went wrong >&2 && exit 3")
    assert "  | it went wrong" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    _assert_unnamed(engine)


def test_an_image_build_has_no_network(
    engine: docker.DockerClient, base: str, tmp_path: Path, cleared: None
) -> None:
    _build(engine, tmp_path, base, 'RUN test "$(ls /sys/class/net)" = lo')


def test_an_interrupted_build_leaves_nothing(
    engine: docker.DockerClient, base: str, tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from aotlm.toolchain.engine import connect; "
        "from aotlm.toolchain.image_build import build_image; "
        "from aotlm.support.progress import silent; "
        f"build_image(connect(), Path(sys.argv[1]), [], sys.argv[2], {{}}, {NAME!r}, silent)"
    )
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN sleep 300\n")
    before = {container.id for container in engine.containers.list(all=True)}
    child = subprocess.Popen(
        [sys.executable, "-c", script, dockerfile, base], stderr=subprocess.DEVNULL
    )
    while not {container.id for container in engine.containers.list()} - before:
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) != 0
    for _ in range(300):
        if {container.id for container in engine.containers.list(all=True)} <= before:
            break
        time.sleep(0.1)
    assert {container.id for container in engine.containers.list(all=True)} <= before
    _assert_unnamed(engine)
