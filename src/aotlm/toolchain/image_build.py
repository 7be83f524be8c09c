"""One image build: a context in, an image's id out, and the final name only at the end."""

import contextlib
import io
import itertools
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import APIError
from docker.models.images import Image
from requests.exceptions import RequestException

from aotlm.errors import AotlmError
from aotlm.support.progress import Progress

_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_COLOUR = re.compile(r"\x1b\[\d+m")  # the engine paints what a step writes to stderr
_LAST_LINES = 6


@dataclass(frozen=True)
class Member:
    """A file of the context: its path there, its size and what opens it at its start."""

    path: str
    size_bytes: int
    file: IO[bytes]


def bytes_member(path: str, data: bytes) -> Member:
    """Return a file that holds the data."""
    return Member(path, len(data), io.BytesIO(data))


def file_member(path: str, source: Path) -> Member:
    """Return a file with the content of `source`."""
    return Member(path, source.stat().st_size, source.open("rb"))


def build_image(
    client: docker.DockerClient,
    dockerfile: Path,
    members: Iterable[Member],
    base: str,
    labels: Mapping[str, str],
    name: str,
    progress: Progress,
    stage: str | None = None,
) -> Image:
    """Build with no network and give the result its name; each member is read when it comes.

    Raises:
        AotlmError: a step failed or the disk is full; nothing has the name then.
    """
    image_id = None
    everything = itertools.chain([file_member("Dockerfile", dockerfile)], members)
    with _written(everything, name) as context:
        try:
            answers = client.api.build(
                fileobj=context, custom_context=True, buildargs={"BASE_IMAGE": base},
                labels=dict(labels), target=stage, network_mode="none", rm=True, forcerm=True,
                decode=True,
            )  # fmt: skip
            image_id = _follow(answers, name, progress)
        except (APIError, RequestException) as error:
            raise _failure(name, str(error), []) from error
        return _named(client, image_id, name)


def _named(client: docker.DockerClient, image_id: str, name: str) -> Image:
    try:
        client.images.get(image_id).tag(name)
    except APIError as error:
        raise AotlmError(
            f"{name!r} cannot name an image ({error.explanation}); give another --tag"
        ) from None
    return client.images.get(name)


def _written(members: Iterable[Member], name: str) -> IO[bytes]:
    """Return an open tar; it has no times, users or modes of here: the engine's cache knows it.

    Raises:
        AotlmError: there is no room for it.
    """
    try:
        with contextlib.ExitStack() as opened:
            context = opened.enter_context(tempfile.TemporaryFile())
            with tarfile.open(fileobj=context, mode="w") as tar:
                for member in members:
                    info = tarfile.TarInfo(member.path)
                    info.size, info.mode = member.size_bytes, 0o644
                    with member.file as file:
                        tar.addfile(info, file)
            context.seek(0)
            opened.pop_all()
            return context
    except OSError as error:
        raise AotlmError(
            f"the image {name} was not built: its context could not be written to "
            f"{tempfile.gettempdir()} ({error.strerror}); make room there, or name another folder "
            "with TMPDIR"
        ) from error


def _follow(answers: Iterable[Mapping[str, Any]], name: str, progress: Progress) -> str:
    """Report each step; return the image's id."""
    image_id = ""
    said: list[str] = []
    for answer in answers:
        if "error" in answer:
            raise _failure(name, str(answer["error"]), said)
        text = _COLOUR.sub("", str(answer.get("stream", ""))).strip()
        if step := _STEP.match(text):
            progress(int(step[1]), int(step[2]), " ".join(step[3].split())[:60])
        elif text:
            said.append(text)
        image_id = answer.get("aux", {}).get("ID", image_id)
    return image_id


def _failure(name: str, reason: str, said: list[str]) -> AotlmError:
    everything = "\n".join([*said, reason])
    if "no space left on device" in everything.lower():
        return AotlmError(
            f"the image {name} was not built: the disk of the Docker engine is full; make room "
            "(docker system prune) and run this again"
        )
    tail = "".join(f"\n  | {line}" for text in said[-_LAST_LINES:] for line in text.splitlines())
    return AotlmError(
        f"the image {name} was not built: {reason.strip().rstrip('.')}; solve what its last lines "
        f"say and run this again{tail}"
    )
