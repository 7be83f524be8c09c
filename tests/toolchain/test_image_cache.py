"""The folder that keeps images: what is whole and the right one is loaded, all else is replaced."""

import contextlib
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import zstandard
from docker.errors import ImageNotFound
from docker.models.images import Image

from aotlm.errors import AotlmError
from aotlm.support.progress import silent
from aotlm.toolchain import images
from aotlm.toolchain.base_image import find_base
from aotlm.toolchain.engine import read_settings
from aotlm.toolchain.image_build import build_image, bytes_member
from aotlm.toolchain.image_cache import archive_path, keep_image, load_image
from aotlm.toolchain.images import ensure_environment, environment_inputs
from aotlm.toolchain.pins import read_lock, read_pins
from tests.toolchain.conftest import SMALL_BYTES, inv

NAME = "aotlm-test-kept:latest"
LABELS = {"aotlm.test": "kept"}


@pytest.fixture
def image(engine: docker.DockerClient, tmp_path: Path) -> Iterator[Image]:
    """An image of one file and a label."""
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM scratch\nCOPY random /random\n")
    random = bytes_member("random", os.urandom(2 * SMALL_BYTES))
    yield build_image(engine, dockerfile, [random], "unused", LABELS, NAME, silent)
    _forget(engine)


def _forget(engine: docker.DockerClient) -> None:
    with contextlib.suppress(ImageNotFound):
        engine.images.remove(NAME, force=True)


@pytest.fixture
def archive(image: Image, engine: docker.DockerClient, tmp_path: Path) -> Path:
    """The image in a folder that was not there, and gone from the engine."""
    file = archive_path(tmp_path / "kept" / "here", NAME)
    keep_image(image, file)
    _forget(engine)
    return file


def test_what_is_kept_is_loaded_under_its_name(
    archive: Path, image: Image, engine: docker.DockerClient
) -> None:
    assert [path.name for path in archive.parent.iterdir()] == ["aotlm-test-kept-latest.tar.zst"]
    loaded = load_image(engine, archive, NAME, LABELS)
    assert loaded is not None
    assert (loaded.id, loaded.tags) == (image.id, [NAME])


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _not_packed(file: Path) -> None:
    file.write_bytes(b"not packed")


def _no_image(file: Path) -> None:
    with tarfile.open(file.with_suffix(""), "w") as tar:
        tar.add(__file__, "file")
    file.write_bytes(zstandard.compress(file.with_suffix("").read_bytes()))
    file.with_suffix("").unlink()


@pytest.mark.parametrize("spoil", [_cut, _flip, _empty, _not_packed, _no_image])
def test_a_damaged_archive_is_removed_and_the_engine_never_sees_it(
    spoil: Callable[[Path], None],
    archive: Path,
    engine: docker.DockerClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(archive)
    before = {image.id for image in engine.images.list(all=True)}
    capsys.readouterr()
    assert load_image(engine, archive, NAME, LABELS) is None
    said = capsys.readouterr().err
    assert said.startswith(f"cache: {archive} is damaged (")
    assert said.endswith("; it is built again\n")
    assert list(archive.parent.iterdir()) == []
    assert {image.id for image in engine.images.list(all=True)} == before


def test_another_image_under_the_name_is_removed(
    archive: Path, engine: docker.DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert load_image(engine, archive, NAME, {"aotlm.test": "wanted"}) is None
    assert "holds another image (its aotlm.test is kept)" in capsys.readouterr().err
    assert not archive.exists()
    with pytest.raises(ImageNotFound):
        engine.images.get(NAME)


def test_an_archive_that_would_give_out_names_is_refused(
    image: Image, engine: docker.DockerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "named.tar.zst"
    file.write_bytes(zstandard.compress(b"".join(image.save(named=NAME))))
    _forget(engine)
    assert load_image(engine, file, NAME, LABELS) is None
    assert f"it names its image {NAME}" in capsys.readouterr().err
    with pytest.raises(ImageNotFound):
        engine.images.get(NAME)


def test_a_full_disk_leaves_no_archive(image: Image, small_disk: Path) -> None:
    with pytest.raises(AotlmError, match=r"kept\.tar\.zst was not written: No space left on"):
        keep_image(image, small_disk / "kept.tar.zst")
    assert list(small_disk.iterdir()) == []


def test_an_environment_is_built_once_for_all_engines_that_share_a_folder(
    engine: docker.DockerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = find_base(engine, read_settings({}).base_image or read_pins().base_image)
    entries = [read_lock()["invoke"]]  # a small wheel
    built = ensure_environment(engine, base, entries, "whole", silent, tmp_path)
    name = built.tags[0]
    try:
        kept = archive_path(tmp_path, name)
        assert kept.exists()
        engine.images.remove(name)
        steps: list[str] = []
        loaded = ensure_environment(
            engine, base, entries, "whole", lambda done, total, what: steps.append(what), tmp_path
        )
        assert (loaded.id, steps) == (built.id, [f"loading {kept.name}"])
        # what the engine has already is kept too, and nothing is packed twice
        kept.unlink()
        for _ in range(2):
            assert ensure_environment(engine, base, entries, "whole", silent, tmp_path) == built
        assert capsys.readouterr().err.count(f"cache: {kept} made, ") == 2
    finally:
        engine.images.remove(name, force=True)


def test_a_changed_wheel_stage_or_dockerfile_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock()
    seen = {
        environment_inputs([lock["invoke"]], "whole"),
        environment_inputs([lock["invoke"], lock["tqdm"]], "whole"),
        environment_inputs([lock["invoke"]], "slim"),
    }
    changed = tmp_path / "environment.Dockerfile"
    changed.write_text(images._ENVIRONMENT.read_text("utf-8") + "ENV CHANGED=1\n")
    monkeypatch.setattr(images, "_ENVIRONMENT", changed)
    seen.add(environment_inputs([lock["invoke"]], "whole"))
    assert len(seen) == 4


def test_this_machine_keeps_no_images(tmp_path: Path) -> None:
    done = inv("toolchain", "--engine=local", f"--cache={tmp_path}")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"error: {tmp_path} is to keep images, and this machine makes")
