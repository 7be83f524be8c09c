"""Opens a bundle (a folder, a `.tar`, a `.tar.zst`) and gives out its files, verified."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aotlm_runtime.bundle.archive import read_members
from aotlm_runtime.bundle.decompress import MAGIC, MAX_SIGNATURE_BYTES, decompress
from aotlm_runtime.bundle.header import data_start
from aotlm_runtime.bundle.manifest import File, Manifest, read_manifest_at
from aotlm_runtime.bundle.names import MANIFEST, PAD, SIGNATURE
from aotlm_runtime.bundle.verification import Block, Progress, Verification, compare
from aotlm_runtime.errors import (
    ArchiveInvalidError,
    BundleNotFoundError,
    FileChangedError,
    FileMissingError,
    FileUnlistedError,
    WeightsInvalidError,
)
from aotlm_runtime.host import cpu, memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Extent:
    """Where the bytes of one of the bundle's files are."""

    fd: int
    offset: int
    size_bytes: int


class Bundle:
    """An open bundle. Its files stay open until `close`; what was mapped stays valid after it."""

    def __init__(self, name: str, extents: Mapping[str, Extent]) -> None:
        self.name = name
        self._extents = dict(extents)
        self.manifest = self._read_manifest()
        self._files = {file.path: file for file in self.manifest.files}
        self._check_members()
        self._verification: Verification | None = None

    def read(self, path: str) -> bytes:
        """Return the bytes of a small file.

        Raises:
            FileChangedError: they are not those that the manifest describes.
        """
        extent = self._extents[path]
        data = os.pread(extent.fd, extent.size_bytes, extent.offset)
        compare(
            self._shown(path), "sha256", hashlib.sha256(data).hexdigest(), self._files[path].sha256
        )
        return data

    def extent(self, path: str) -> Extent:
        """Return where the bytes of a file are, while the bundle is open."""
        return self._extents[path]

    def map_weights(self) -> "NDArray[np.int8]":
        """Return the weight file's data section, mapped: [weights_size_bytes] i8.

        Raises:
            WeightsInvalidError: it does not start at a page, or has another size than the ABI says.
        """
        extent = self._extents[self.manifest.weights]
        header = data_start(extent.fd, extent.offset)
        if extent.offset % memory.PAGE or header % memory.PAGE:
            raise WeightsInvalidError(
                f"the weights in {self.name} start at byte {extent.offset} + {header}, but must "
                f"start at multiples of {memory.PAGE} to be mapped; package the model again"
            )
        wanted = self.manifest.abi.weights_size_bytes
        if extent.size_bytes - header != wanted:
            raise WeightsInvalidError(
                f"the weights in {self.name} have {extent.size_bytes - header} bytes, but the "
                f"compiled code reads {wanted}; package the model again"
            )
        return memory.map_file(extent.fd, extent.offset + header, wanted)

    def begin_verification(self, n_threads: int | None = None) -> Verification:
        """Return the comparison of every file with the manifest, which goes on beside the caller.

        It begins with the first call, and takes at most the cores that this process may use. The
        bundle may be closed meanwhile.
        """
        if self._verification is None:
            n_cores = cpu.default_threads()
            n_threads = min(n_threads or n_cores, n_cores)
            self._verification = Verification(list(self._blocks()), n_threads)
        return self._verification

    def verify(
        self, progress: Progress = lambda n_bytes: None, *, with_whole_files: bool = False
    ) -> None:
        """Compare every file with the manifest; `progress` is told the bytes of each step.

        `with_whole_files` also compares the digests of whole files that have some of blocks, for
        those who rely on both.

        Raises:
            FileChangedError: a file's digest is not the manifest's.
        """
        blocks = list(self._blocks())
        if with_whole_files:
            blocks += [self._whole(file) for file in self.manifest.files if file.block_blake3]
        Verification(blocks, cpu.default_threads()).wait(lambda n_bytes: nullcontext(progress))

    @property
    def is_signed(self) -> bool:
        """Whether a signature lies in the bundle; nothing is said about its truth."""
        return SIGNATURE in self._extents

    def read_signature(self) -> bytes:
        """Return the beginning of the signature's bytes, which is all of it unless it is wrong."""
        extent = self._extents[SIGNATURE]
        return os.pread(extent.fd, min(extent.size_bytes, MAX_SIGNATURE_BYTES), extent.offset)

    def unpack(self, folder: Path) -> None:
        """Write every file of the bundle, as it is, below a new folder."""
        for path, extent in sorted(self._extents.items()):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                for begin in range(0, extent.size_bytes, _CHUNK_BYTES):
                    size = min(_CHUNK_BYTES, extent.size_bytes - begin)
                    file.write(os.pread(extent.fd, size, extent.offset + begin))

    @property
    def size_bytes(self) -> int:
        """The bytes that `verify` reads."""
        return sum(file.size_bytes for file in self.manifest.files)

    def close(self) -> None:
        """Close the files; the bundle gives out nothing after it."""
        for fd in sorted({extent.fd for extent in self._extents.values()}):
            os.close(fd)
        self._extents = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_manifest(self) -> Manifest:
        extent = self._extents.get(MANIFEST)
        if extent is None:
            raise BundleNotFoundError(
                f"{self.name} holds no {MANIFEST}, so it is no bundle; "
                "give the folder or archive that the packaging step wrote"
            )
        name = f"{self.name}/{MANIFEST}"
        return read_manifest_at(extent.fd, extent.offset, extent.size_bytes, name)

    def _blocks(self) -> Iterator[Block]:
        """Yield all bytes of all files: a file's blocks where there are digests of them."""
        for file in self.manifest.files:
            if not file.block_blake3:
                yield self._whole(file)
            for index, digest in enumerate(file.block_blake3):
                begin = index * self.manifest.block_size_bytes
                size_bytes = min(self.manifest.block_size_bytes, file.size_bytes - begin)
                name = f"the block at byte {begin} of {self._shown(file.path)}"
                yield self._block(name, file, begin, size_bytes, "blake3", digest)

    def _whole(self, file: File) -> Block:
        name = self._shown(file.path)
        return self._block(name, file, 0, file.size_bytes, "sha256", file.sha256)

    def _block(
        self, name: str, file: File, begin: int, size_bytes: int, hash_name: str, digest: str
    ) -> Block:
        extent = self._extents[file.path]
        return Block(name, extent.fd, extent.offset + begin, size_bytes, hash_name, digest)

    def _shown(self, path: str) -> str:
        return f"'{path}' in {self.name}"

    def _check_members(self) -> None:
        """Compare the names and sizes with the manifest, which costs nothing."""
        for path in sorted(self._extents):
            if path not in self._files and path not in (MANIFEST, SIGNATURE):
                raise FileUnlistedError(
                    f"{self.name} holds '{path}', which its manifest does not list; "
                    "remove the file or get the bundle again"
                )
        for file in self.manifest.files:
            extent = self._extents.get(file.path)
            if extent is None:
                raise FileMissingError(
                    f"{self.name} lacks '{file.path}', which its manifest lists; "
                    "get the bundle again"
                )
            if extent.size_bytes != file.size_bytes:
                raise FileChangedError(
                    f"'{file.path}' in {self.name} has {extent.size_bytes} bytes, but the "
                    f"manifest says {file.size_bytes}; get the bundle again"
                )


def open_bundle(path: str | Path) -> Bundle:
    """Open the bundle at `path` and compare its list of files with its manifest.

    Raises:
        BundleError: a subclass that says what is wrong.
    """
    path = Path(path)
    with ExitStack() as refused:
        if path.is_dir():
            extents = _open_folder(path, refused)
        elif path.is_file():
            extents = _open_archive(path, refused)
        else:
            raise BundleNotFoundError(
                f"no bundle at {path}; give the folder or archive that the packaging step wrote"
            )
        bundle = Bundle(str(path), extents)
        refused.pop_all()  # it closes the files itself
    return bundle


def _open_folder(folder: Path, refused: ExitStack) -> dict[str, Extent]:
    """Open every file in a folder; links, sockets and the like are as wrong as unlisted files.

    `refused` gets what closes them.
    """
    extents: dict[str, Extent] = {}
    for parent, folders, names in os.walk(folder):
        for name in sorted([*folders, *names]):
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise FileUnlistedError(
                    f"{folder} holds '{relative}', which is not a regular file; "
                    "remove it or get the bundle again"
                )
            if path.is_file():
                fd = _open(path, refused)
                extents[relative] = Extent(fd, 0, os.fstat(fd).st_size)
    return extents


def _open_archive(path: Path, refused: ExitStack) -> dict[str, Extent]:
    fd = _open(path, refused)
    if os.pread(fd, len(MAGIC), 0) == MAGIC:
        fd = decompress(fd, path)
        refused.close()
        refused.callback(os.close, fd)
    members = read_members(fd, str(path))
    pad = members.get(PAD)
    if pad and (pad.size_bytes > memory.PAGE or any(os.pread(fd, pad.size_bytes, pad.offset))):
        raise ArchiveInvalidError(
            f"{path} holds bytes in {PAD}, which only aligns the weights; get the archive again"
        )
    return {
        member.path: Extent(fd, member.offset, member.size_bytes)
        for member in members.values()
        if member.path != PAD
    }


def _open(path: Path, refused: ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BundleNotFoundError(
            f"cannot read {path}: {error.strerror}; check its owner and mode"
        ) from error
    refused.callback(os.close, fd)
    return fd
