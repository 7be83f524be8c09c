"""Which engine does the work: Docker, or this machine itself; and the connection to Docker."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import docker
from docker.errors import DockerException

from aotlm.errors import AotlmError, UsageError
from aotlm.support.progress import note

ENGINES: Final = ("auto", "docker", "local")
_PING_SECONDS = 10
# A quiet step of a build (hundreds of megabytes being installed) may say nothing for minutes.
_CALL_SECONDS = 1800


@dataclass(frozen=True)
class Settings:
    """The engine (one of ENGINES) and the name of the base image; None is the pinned one."""

    engine: str
    base_image: str | None


def read_settings(
    config: Mapping[str, Any], engine: str | None = None, base_image: str | None = None
) -> Settings:
    """Return the settings: flags, else AOTLM_ENGINE and AOTLM_BASE_IMAGE, else the configuration.

    Raises:
        UsageError: the engine is unknown.
    """
    engine = engine or os.environ.get("AOTLM_ENGINE") or config.get("engine") or "auto"
    base = base_image or os.environ.get("AOTLM_BASE_IMAGE") or config.get("base_image")
    if engine not in ENGINES:
        raise UsageError(f"unknown engine '{engine}'; known are {', '.join(ENGINES)}")
    return Settings(engine, base)


def connect() -> docker.DockerClient:
    """Return a client of the engine that DOCKER_HOST names, or of this machine's own.

    Raises:
        AotlmError: none answers, or it does not let this user in.
    """
    try:
        client = docker.from_env(timeout=_PING_SECONDS, version="auto")
        client.ping()
    except DockerException as error:
        raise AotlmError(_why(error)) from error
    client.api.timeout = _CALL_SECONDS
    return client


def connect_or_none(settings: Settings) -> docker.DockerClient | None:
    """Return a client of Docker; None where this machine itself is to do the work.

    Raises:
        AotlmError: Docker was asked for by name and does not answer.
    """
    if settings.engine == "local":
        return None
    try:
        return connect()
    except AotlmError as error:
        if settings.engine == "docker":
            raise
        why = str(error).partition(";")[0]
        note(f"engine: this machine ({why})")
        return None


def _why(error: DockerException) -> str:
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if "Permission denied" in str(error) or "PermissionError" in str(error):
        return (
            f"the Docker engine at {where} does not let this user in; add the user to the group "
            "docker and log in again (compiling works without it: --engine local)"
        )
    return (
        f"no Docker engine answers at {where}; start one or name another with DOCKER_HOST "
        "(compiling works without it: --engine local)"
    )
