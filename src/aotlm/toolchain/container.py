"""One command in a container of the toolchain image, its output streamed to this process."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.types import Mount
from requests.exceptions import RequestException

from aotlm.errors import AotlmError

_STOP_SECONDS = 10
# What the entry point of toolchain.Dockerfile sets.
_UMASK_VARIABLE = "AOTLM_UMASK"


def run_in_container(
    client: docker.DockerClient,
    image: str,
    words: Sequence[str],
    read_only: Sequence[Path],
    writable: Sequence[Path],
    env: Mapping[str, str],
) -> int:
    """Run the image's entry point with `words` as this user with its umask; return its exit code.

    It has no network, and sees of this machine only the given paths, under their own names and
    from the same working folder. An interrupt stops it and is raised again.

    Raises:
        AotlmError: the engine refuses the container, or goes away while it runs.
    """
    try:
        container = client.containers.create(
            image,
            list(words),
            user=f"{os.getuid()}:{os.getgid()}",
            working_dir=os.getcwd(),
            network_mode="none",
            mounts=[*_binds(writable, read_only=False), *_binds(read_only, read_only=True)],
            environment={**env, _UMASK_VARIABLE: f"{_umask():03o}"},
            init=True,
        )
        try:
            return _stream(container)
        finally:
            container.remove(force=True)
    except (APIError, RequestException) as error:
        reason = getattr(error, "explanation", None) or str(error)
        raise AotlmError(
            f"the Docker engine could not run {image} ({reason.strip().rstrip('.')}); solve that "
            "and run the same command again, or use --engine local"
        ) from error


def _binds(paths: Sequence[Path], *, read_only: bool) -> list[Mount]:
    return [Mount(str(path), str(path), type="bind", read_only=read_only) for path in paths]


def _umask() -> int:
    """This process's umask: to read it is to set it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _stream(container: Any) -> int:
    """Start the container, copy its two outputs to ours as they come, and return its exit code."""
    output = container.attach(stream=True, demux=True)
    try:
        container.start()
        for out, err in output:
            for data, file in ((out, sys.stdout), (err, sys.stderr)):
                if data:
                    file.buffer.write(data)
                    file.flush()
        return int(container.wait()["StatusCode"])
    except KeyboardInterrupt:
        with contextlib.suppress(APIError, RequestException):
            container.kill("SIGINT")
            container.wait(timeout=_STOP_SECONDS)
        raise
