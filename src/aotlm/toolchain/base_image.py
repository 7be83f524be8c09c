"""The image that ours are built on: found or pulled, and known to have the pinned Python."""

import re
from dataclasses import dataclass

import docker
from docker.errors import APIError, ContainerError, ImageNotFound
from docker.models.images import Image

from aotlm.errors import AotlmError
from aotlm.toolchain.pins import is_pinned_image

_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


@dataclass(frozen=True)
class BaseImage:
    """A base: the name that the user gave, and the engine's id of its content."""

    name: str
    id: str

    @property
    def key(self) -> str:
        """What stands for its content in the tag of an image: the same on every machine."""
        return self.name.rsplit("@", 1)[1] if is_pinned_image(self.name) else self.id


def find_base(client: docker.DockerClient, name: str) -> BaseImage:
    """Return the image of that name, pulled where this engine has none.

    Raises:
        AotlmError: it cannot be pulled, or what came has another digest than the name says.
    """
    try:
        image = client.images.get(name)
    except ImageNotFound:
        image = _pull(client, name)
    except APIError as error:
        raise AotlmError(f"{name!r} is no image's name ({error.explanation}); correct it") from None
    _check_digest(name, image.attrs.get("RepoDigests") or [])
    return BaseImage(name, image.id)


def check_python(client: docker.DockerClient, base: BaseImage, wanted: str) -> None:
    """Start the image's Python once.

    Raises:
        AotlmError: the image has none, or another than `wanted` (major.minor).
    """
    try:
        words = ["python3", "-c", _VERSION]
        output = client.containers.run(
            base.id, words, entrypoint="", network_mode="none", remove=True
        )
        found = output.decode().strip()
    except (APIError, ContainerError):
        found = "none"
    if found != wanted:
        raise AotlmError(
            f"the base image {base.name} has Python {found} as python3, wanted is {wanted}; name "
            "another with --base-image, or leave it out for the pinned one"
        )


def _pull(client: docker.DockerClient, name: str) -> Image:
    try:
        last, whole = name.rsplit("/", 1)[-1], is_pinned_image(name)
        return client.images.pull(name, tag=None if whole or ":" in last else "latest")
    except APIError as error:
        reason = str(error.explanation or error)
        if is_pinned_image(name) and re.search("manifest unknown|not found", reason):
            raise AotlmError(
                f"the registry has nothing under {name} any more: the tag moved and the pinned "
                "content is gone; pin another digest in docker/pins.toml, or name an image with "
                "--base-image"
            ) from None
        raise AotlmError(
            f"the base image {name} cannot be pulled ({reason.strip().rstrip('.')}); check the "
            "network, or name an image that is here with --base-image"
        ) from None


def _check_digest(name: str, digests: list[str]) -> None:
    if not is_pinned_image(name):
        return
    wanted = name.rsplit("@", 1)[1]
    if not any(digest.endswith(f"@{wanted}") for digest in digests):
        raise AotlmError(
            f"the engine gave {', '.join(digests) or 'an image without a digest'} for {name}; "
            "remove that image and run this again"
        )
