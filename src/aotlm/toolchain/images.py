"""The images: the environment of pinned wheels, and the toolchain and runtime images on it."""

import hashlib
import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import ImageNotFound
from docker.models.images import Image

from aotlm.errors import AotlmError
from aotlm.support.progress import Progress
from aotlm.toolchain.base_image import BaseImage, check_python, find_base
from aotlm.toolchain.image_build import Member, build_image, bytes_member, file_member
from aotlm.toolchain.image_cache import archive_path, keep_image, load_image
from aotlm.toolchain.pins import (
    DOCKER_DIR,
    Locked,
    read_lock,
    read_pins,
    with_dependencies,
)
from aotlm.toolchain.wheelhouse import fetch_wheels, wheelhouse

ROOT = DOCKER_DIR.parent
# Labels of an image: the digest of all that went in besides the base, and the base's name and key.
INPUTS = "aotlm.inputs"
BASE_NAME = "aotlm.base.name"
BASE_KEY = "aotlm.base.key"
_ENVIRONMENT = DOCKER_DIR / "environment.Dockerfile"
# tokenizers asks for it to fetch from the hub, which a bundle never does: a tenth of the image
_NEVER_FETCHED = ("huggingface-hub",)
_PATTERNS = (
    "tasks.py",
    "pyproject.toml",
    "src/aotlm/**/*",
    "runtime/pyproject.toml",
    "runtime/aotlm_runtime/**/*",
    "docker/*",
)


@dataclass(frozen=True)
class Sources:
    """Files of ours by their path in the checkout, read once: an image holds what its tag says."""

    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """One sha256 over all paths and contents."""
        total = hashlib.sha256()
        for path, data in self.files.items():
            total.update(path.encode() + b"\0" + hashlib.sha256(data).digest())
        return total.hexdigest()

    def members(self, start: str = "") -> list[Member]:
        """Return the files whose path starts so, as files of a build's context."""
        kept = (path for path in self.files if path.startswith(start))
        return [bytes_member(path, self.files[path]) for path in kept]


def find_toolchain(client: docker.DockerClient) -> Image | None:
    """Return this engine's newest toolchain image of the present inputs, on any base."""
    return _newest(client, read_sources())


def _newest(client: docker.DockerClient, sources: Sources) -> Image | None:
    images = client.images.list("aotlm-toolchain", filters={"label": f"{INPUTS}={sources.digest}"})
    return max(images, key=lambda image: image.attrs["Created"], default=None)


def ensure_toolchain(
    client: docker.DockerClient,
    base_name: str | None,
    progress: Progress,
    cache: Path | None = None,
) -> tuple[Image, bool]:
    """Return the toolchain image, and whether it had to be built.

    `cache` is a folder for the image of the wheels, which takes minutes to build; ours on top of it
    takes seconds.

    Raises:
        AotlmError: the base is wrong or moved, a wheel cannot be had, or a build failed.
    """
    base = find_base(client, base_name or read_pins().base_image)
    sources = read_sources()
    labels = {INPUTS: sources.digest, BASE_NAME: base.name, BASE_KEY: base.key}
    name = f"aotlm-toolchain:{_key(labels[INPUTS], base.key)}"
    found = _find(client, name)
    if found is None:
        _check_moved(_newest(client, sources), base)
    elif cache is None:
        return found, False
    entries = with_dependencies(read_lock(), read_pins().for_image().wheels)
    environment = ensure_environment(client, base, entries, "whole", progress, cache)
    if found:
        return found, False
    members, dockerfile = sources.members(), DOCKER_DIR / "toolchain.Dockerfile"
    image = build_image(client, dockerfile, members, environment.id, labels, name, progress)
    return image, True


def ensure_environment(
    client: docker.DockerClient,
    base: BaseImage,
    entries: Sequence[Locked],
    stage: str,
    progress: Progress,
    cache: Path | None = None,
) -> Image:
    """Return the image with exactly these wheels, built where neither engine nor cache has it.

    `stage` is one of environment.Dockerfile's.
    """
    inputs = environment_inputs(entries, stage)
    labels = {INPUTS: inputs, BASE_NAME: base.name, BASE_KEY: base.key}
    name = f"aotlm-environment:{_key(inputs, base.key)}"
    image = _find(client, name)
    archive = archive_path(cache, name) if cache else None
    if image is None and archive and archive.exists():
        progress(0, 1, f"loading {archive.name}")
        image = load_image(client, archive, name, {INPUTS: inputs, BASE_KEY: base.key})
    if image is None:
        check_python(client, base, read_pins().python)
        members = _wheel_members(entries, progress)
        image = build_image(
            client, _ENVIRONMENT, members, base.id, labels, name, progress, stage=stage
        )
        # what the slim stage was copied from is never asked for again
        client.images.prune({"dangling": True, "label": "aotlm.stage=whole"})
    if archive and not archive.exists():
        progress(0, 1, f"packing {archive.name}")
        keep_image(image, archive)
    return image


def environment_inputs(entries: Sequence[Locked], stage: str) -> str:
    """Return the digest of all that goes into an environment besides its base."""
    return _digest(_requirements(entries), stage, _ENVIRONMENT.read_text("utf-8"))


def _requirements(entries: Sequence[Locked]) -> str:
    return "".join(entry.text for entry in entries)


def _wheel_members(entries: Sequence[Locked], progress: Progress) -> Iterable[Member]:
    """The context of environment.Dockerfile: also pip, which installs the others."""
    needed = {entry.name: entry for entry in (*entries, read_lock()["pip"])}
    wheels = fetch_wheels(list(needed.values()), wheelhouse(), progress=progress)
    return itertools.chain(
        [bytes_member("requirements.txt", _requirements(entries).encode())],
        (file_member(f"wheels/{wheel.name}", wheel) for wheel in wheels),
    )


def build_runtime(
    client: docker.DockerClient,
    base_name: str | None,
    bundle: Iterable[Member],
    name: str,
    progress: Progress,
) -> Image:
    """Build the image of the runtime and the bundle's files, which have their paths in it.

    Raises:
        AotlmError: the base is wrong, a wheel cannot be had, or a build failed.
    """
    base = find_base(client, base_name or read_pins().base_image)
    environment = ensure_environment(client, base, runtime_entries(), "slim", progress)
    members = itertools.chain(
        read_sources().members("runtime/aotlm_runtime/"),
        (Member(f"bundle/{m.path}", m.size_bytes, m.file) for m in bundle),
    )
    dockerfile = DOCKER_DIR / "runtime.Dockerfile"
    labels = {BASE_NAME: base.name, BASE_KEY: base.key}
    return build_image(client, dockerfile, members, environment.id, labels, name, progress)


def runtime_entries() -> list[Locked]:
    """Return the lock's entries of what the runtime package depends on."""
    project = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text("utf-8"))["project"]
    names = [text.split(">")[0].strip() for text in project["dependencies"]]
    return with_dependencies(read_lock(), names, _NEVER_FETCHED)


def read_sources(root: Path = ROOT) -> Sources:
    """Return all that goes into the toolchain image besides its base and its wheels."""
    globbed = {path for pattern in _PATTERNS for path in root.glob(pattern)}
    found = {path for path in globbed if path.is_file() and path.suffix != ".pyc"}
    return Sources({path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(found)})


def _find(client: docker.DockerClient, name: str) -> Image | None:
    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def _check_moved(built: Image | None, base: BaseImage) -> None:
    """A name that stands for other content than it did for the present image is not followed."""
    if built is None or built.labels[BASE_NAME] != base.name:
        return
    raise AotlmError(
        f"the base image {base.name} moved: it is {base.key} now, and was {built.labels[BASE_KEY]} "
        f"when {built.tags[0]} was built from it; name the one you want by its id or digest, or "
        f"remove that image (docker rmi {built.tags[0]}) to take the new one"
    )


def _key(*parts: str) -> str:
    return _digest(*parts)[:16]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
