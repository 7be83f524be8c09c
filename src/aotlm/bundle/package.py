"""The package stage: what import and compile made, as one bundle that the runtime takes."""

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from blake3 import blake3

from aotlm.bundle import provenance
from aotlm.bundle.archive import write_archive
from aotlm.codegen.compile import read_model_file
from aotlm.errors import AotlmError
from aotlm.support.atomic import new_folder
from aotlm.support.build_record import BuildRecord, build_record, read_build_record
from aotlm.support.progress import Progress, silent
from aotlm.weights.file import WEIGHTS
from aotlm_runtime.bundle.manifest import (
    BLOCK_SIZE_BYTES,
    File,
    Library,
    Manifest,
    ModelFile,
    encode,
)

MANIFEST = "manifest.json"


def package(
    out_dir: Path,
    archive: Path | None = None,
    compress: bool = False,
    *,
    progress: Progress = silent,
) -> Path:
    """Write `out_dir/bundle` and an archive of it; return the archive's path.

    The archive is `out_dir/<name of out_dir>.tar` unless named; `compress` packs it with zstd.

    Raises:
        AotlmError: a stage is missing, a library belongs to another import, or a file of the
            import was changed after it.
    """
    model = read_model_file(out_dir / "import")
    libraries = _read_libraries(out_dir, model.abi.digest)
    archive = archive or _default_archive(out_dir, compress)
    with new_folder(out_dir / "bundle") as made:
        for source, path in _members(out_dir, model, libraries):
            _place(source, made / path)
        files = _describe_files(made, progress)
        _check_against_import(files, model, out_dir)
        files = _with_provenance(made, files, model, libraries, _records(out_dir, libraries))
        manifest = Manifest(
            model=model.model,
            abi=model.abi,
            libraries=libraries,
            weights=WEIGHTS,
            tokenizer_files=[f"tokenizer/{name}" for name in model.tokenizer_files],
            toolchain=model.toolchain,
            source_tensors=model.source_tensors,
            block_size_bytes=BLOCK_SIZE_BYTES,
            files=files,
        )
        (made / MANIFEST).write_bytes(encode(manifest))
    paths = [MANIFEST, *(file.path for file in files)]
    write_archive(out_dir / "bundle", paths, WEIGHTS, archive, compress)
    return archive


def _default_archive(out_dir: Path, compress: bool) -> Path:
    return out_dir / f"{out_dir.resolve().name}.tar{'.zst' if compress else ''}"


def _read_libraries(out_dir: Path, digest: str) -> list[Library]:
    libraries = []
    for path in sorted((out_dir / "lib").glob("*/library.json")):
        if path.parent.name.startswith("."):
            continue
        library = _read_library(path)
        for part in (library.shared, library.static, library.header):
            _check_digest(out_dir / part, digest)
        libraries.append(library)
    if not libraries:
        raise AotlmError(f"{out_dir / 'lib'} holds no compiled library; run inv compile first")
    return libraries


def _read_library(path: Path) -> Library:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Library)
    except msgspec.MsgspecError as error:
        raise AotlmError(f"{path} is broken ({error}); run inv compile again") from None


def _check_digest(path: Path, digest: str) -> None:
    """Every part of a library holds the digest of the ABI that it was compiled for."""
    if not path.is_file():
        raise AotlmError(f"{path} is missing; run inv compile again")
    if digest.encode() not in path.read_bytes():
        raise AotlmError(
            f"{path} was compiled for another import than the present one (ABI {digest[:12]}); "
            "run inv compile again"
        )


def _records(out_dir: Path, libraries: list[Library]) -> list[BuildRecord]:
    """What the stages before left, and this one's own record, in their order."""
    compiled = [
        read_build_record(out_dir / "lib" / library.target, "inv compile") for library in libraries
    ]
    imported = read_build_record(out_dir / "import", "inv import --force")
    return [imported, *compiled, build_record("package", ())]


def _with_provenance(
    made: Path,
    files: list[File],
    model: ModelFile,
    libraries: list[Library],
    records: list[BuildRecord],
) -> list[File]:
    """Write the provenance of `files`, and return them and it for the manifest."""
    path = made / provenance.NAME
    path.write_bytes(encode(provenance.describe_build(model, records, libraries, files)))
    return sorted([*files, describe_file(made, provenance.NAME)], key=lambda file: file.path)


def _members(out_dir: Path, model: ModelFile, libraries: list[Library]) -> list[tuple[Path, str]]:
    """Pairs of a file and its path in the bundle."""
    imported = out_dir / "import"
    members = [(imported / WEIGHTS, WEIGHTS)]
    members += [
        (imported / "tokenizer" / name, f"tokenizer/{name}") for name in model.tokenizer_files
    ]
    for library in libraries:
        parts = (library.shared, library.static, library.header)
        members += [(out_dir / part, part) for part in parts]
    return members


def _place(source: Path, final: Path) -> None:
    """Link the file, or copy it where links cannot be made."""
    if not source.is_file():
        raise AotlmError(f"{source} is missing; run inv import --force again")
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, final)
    except OSError:
        shutil.copyfile(source, final)


def _describe_files(folder: Path, progress: Progress) -> list[File]:
    paths = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    files = []
    for number, path in enumerate(paths, start=1):
        files.append(describe_file(folder, path))
        progress(number, len(paths), path)
    return files


def describe_file(folder: Path, path: str, block_size_bytes: int = BLOCK_SIZE_BYTES) -> File:
    """Return what the manifest says of a file; more than one block have digests of their own.

    The file is read once: another thread hashes each block beside the whole.
    """
    size_bytes, blocks = 0, list[str]()
    whole = hashlib.sha256()
    with (folder / path).open("rb") as file, ThreadPoolExecutor(1) as pool:
        while block := file.read(block_size_bytes):
            alone = pool.submit(blake3, block)
            whole.update(block)
            size_bytes += len(block)
            blocks.append(alone.result().hexdigest())
    return File(
        path=path,
        size_bytes=size_bytes,
        sha256=whole.hexdigest(),
        block_blake3=blocks if len(blocks) > 1 else [],
    )


def _check_against_import(files: list[File], model: ModelFile, out_dir: Path) -> None:
    """The weights and the tokenizer must be the bytes that the import recorded."""
    recorded = {file.path: file.sha256 for file in model.files}
    for file in files:
        if file.path in recorded and recorded[file.path] != file.sha256:
            raise AotlmError(
                f"{out_dir / 'import' / file.path} was changed after the import (sha256 "
                f"{file.sha256[:12]}, recorded {recorded[file.path][:12]}); "
                "run inv import --force again"
            )
