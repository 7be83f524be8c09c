"""What `inv toolchain` and `inv image` do, and the lines that they print."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docker.models.images import Image

from aotlm.errors import AotlmError, UsageError
from aotlm.support.progress import shown
from aotlm.toolchain.check import check_toolchain
from aotlm.toolchain.engine import Settings, connect, connect_or_none
from aotlm.toolchain.image_build import Member
from aotlm.toolchain.images import build_runtime, ensure_toolchain
from aotlm.toolchain.wheelhouse import install_on_host
from aotlm_runtime.bundle.manifest import Manifest
from aotlm_runtime.bundle.names import MANIFEST
from aotlm_runtime.bundle.reader import Bundle, open_bundle


def prepare_toolchain(settings: Settings, cache: Path | None = None) -> None:
    """Build or find the toolchain image; on this machine, install the wheels where they are wrong.

    `cache` is a folder that keeps the image of the wheels for other engines.

    Raises:
        UsageError: a cache of images was named, and no engine of images does the work.
        AotlmError: it cannot be made ready.
    """
    client = connect_or_none(settings)
    if client is None and cache:
        raise UsageError(f"{cache} is to keep images, and this machine makes none; leave --cache "
                         "out, or use --engine docker")  # fmt: skip
    if client is None:
        _prepare_host()
        return
    if settings.engine == "auto":
        print("engine: docker", file=sys.stderr, flush=True)
    with shown("toolchain") as progress:
        image, built = ensure_toolchain(client, settings.base_image, progress, cache)
    print(f"{image.tags[0]} {'built' if built else 'is there already'}, {_size(image)}")


def prepare_image(bundle: Path, tag: str | None, settings: Settings) -> None:
    """Build the image that runs the bundle, a folder or an archive.

    Raises:
        AotlmError: no Docker engine, or the build failed.
        BundleError: the bundle is broken.
    """
    client = connect()
    with open_bundle(bundle) as opened, shown("image") as progress:
        opened.verify()
        name = tag or _default_tag(opened.manifest)
        image = build_runtime(client, settings.base_image, _members(opened), name, progress)
    weights = opened.manifest.abi.weights_size_bytes
    print(f"{name} built, {_size(image)}, of which {weights / 1e6:.0f} MB are weights")
    print(f"chat: docker run -it {name}")


def _prepare_host() -> None:
    try:
        versions = check_toolchain()
    except AotlmError:
        with shown("toolchain") as progress:
            install_on_host(progress=progress)
        versions = check_toolchain()
    for name, version in versions.items():
        print(f"{name} {version}")


def _members(bundle: Bundle) -> Iterator[Member]:
    for path in (MANIFEST, *(file.path for file in bundle.manifest.files)):
        extent = bundle.extent(path)
        file = os.fdopen(os.dup(extent.fd), "rb")
        file.seek(extent.offset)
        yield Member(path, extent.size_bytes, file)


def _default_tag(manifest: Manifest) -> str:
    words = f"{manifest.model.source.rsplit('/', 1)[-1]}-{manifest.model.dtype}".lower()
    return f"aotlm-{re.sub('[^a-z0-9]+', '-', words).strip('-')}:latest"


def _size(image: Image) -> str:
    return f"{image.attrs['Size'] / 1e6:.0f} MB"
