"""An import is whole, or one sentence and nothing: also where the weights are written beside it."""

import hashlib
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from aotlm.capture.source import open_model
from aotlm.driver import compiler
from aotlm.driver.compiler import dump_model, import_model
from aotlm.errors import AotlmError, UsageError
from aotlm.passes.pipeline import graph_pipeline
from aotlm.passes.recognize_norms import RecognizeNorms
from aotlm.support.timings import TimingTable
from aotlm_runtime.bundle.manifest import read_model_file
from tests.unit.checkpoints import edit, saved

N_LARGE_TOKENS = 9000  # makes the weights the only file of more than FILE_BYTES
FILE_BYTES = 400_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    saved(folder, tie_word_embeddings=False, vocab_size=N_LARGE_TOKENS)
    return folder


def _refusal(model: Path, wanted: type[BaseException] = AotlmError) -> str:
    """Import what cannot be imported over an older import; that one stays, and nothing else."""
    out = model.parent / "out"
    (out / "import").mkdir(parents=True)
    (out / "import" / "old").touch()
    children = _children()
    with pytest.raises(wanted) as caught:
        import_model(str(model), out=out, force=True)
    assert [path.relative_to(out).as_posix() for path in sorted(out.rglob("*"))] == [
        "import",
        "import/old",
    ]
    assert _children() == children
    return str(caught.value)


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")


@contextmanager
def _small_files() -> Iterator[None]:
    """Let no file grow past FILE_BYTES: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_recorded_digests_are_those_of_the_files_and_tensors(model: Path) -> None:
    out = import_model(str(model), out=model.parent / "out")
    recorded = read_model_file(out / "import" / "model.json")
    assert any(file.path == "weights.safetensors" for file in recorded.files)
    for file in recorded.files:
        content = (out / "import" / file.path).read_bytes()
        assert file.sha256 == hashlib.sha256(content).hexdigest()
    tensors = open_model(str(model)).tensors
    assert [tensor.name for tensor in recorded.source_tensors] == tensors.names()
    for tensor in recorded.source_tensors:
        assert tensor.sha256 == tensors.digest(tensor.name)[2]


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return each file's bytes and time of change, by its name."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_dump_leaves_the_import_alone_and_reads_no_weight(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = import_model(str(model), out=model.parent / "out")
    before = _files(out / "import")
    edit(model, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))  # cannot be imported
    folder = dump_model(str(model), out=out)
    assert _files(out / "import") == before
    assert folder == out / "dump" / "import"
    steps = [step.name for step in graph_pipeline("f16")]
    graphs = [f"{number:02}-{step}.graph" for number, step in enumerate(["captured", *steps])]
    modules = [name for name in before if name.endswith(".mlir")]
    assert sorted(_files(folder)) == sorted(
        [*(f"{entry}.{graph}" for entry in compiler.ENTRIES for graph in graphs), *modules]
    )
    for name in modules:
        assert (folder / name).read_bytes() == before[name][0]


def test_a_dump_of_one_pass_is_that_alone_and_makes_no_import(model: Path) -> None:
    out = model.parent / "out"
    dump_model(str(model), out=out, dump_after="recognize-norms")
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [
        "decode.05-recognize-norms.graph",
        "prefill.05-recognize-norms.graph",
    ]


def test_a_pass_that_is_not_there_is_refused_with_the_known_ones(model: Path) -> None:
    with pytest.raises(UsageError, match=r"known are all, captured, canonicalize, .* emit$"):
        dump_model(str(model), dump_after="recognise-norms")


def test_an_import_dumps_what_the_environment_wants(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTLM_DUMP", str(model.parent / "wanted"))
    out = import_model(str(model), out=model.parent / "out")
    monkeypatch.delenv("AOTLM_DUMP")
    folder = dump_model(str(model), out=out)
    wanted = {name: content for name, (content, _) in _files(folder).items()}
    found = _files(model.parent / "wanted" / "import")
    assert {name: content for name, (content, _) in found.items()} == wanted


def test_every_step_of_an_import_is_timed(model: Path) -> None:
    table = TimingTable()
    import_model(str(model), out=model.parent / "out", timings=table)
    steps = [step.name for step in graph_pipeline("f16")]
    passes = ["to the Graph", *steps, "partition"]
    assert [row.step for row in table.rows()] == [
        "capture",
        *(f"{entry}: {step}" for entry in compiler.ENTRIES for step in passes),
        *(f"{entry}: emission" for entry in compiler.ENTRIES),
        "weights",
    ]
    assert all(row.seconds > 0 and row.peak_bytes for row in table.rows())


def test_a_pass_that_fails_leaves_its_graph_and_no_import(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(step: Any, graph: Any) -> Any:
        raise KeyError("window")

    monkeypatch.setattr(RecognizeNorms, "apply", fails)
    out = model.parent / "out"
    with pytest.raises(AotlmError, match="the pass recognize-norms failed: KeyError: 'window'"):
        import_model(str(model), out=out)
    assert [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()] == [
        "import.failed/prefill.05-before-recognize-norms.graph"
    ]
    monkeypatch.undo()
    import_model(str(model), out=out)
    assert not (out / "import.failed").exists()


def test_a_damaged_tensor_is_named(model: Path) -> None:
    edit(model, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))
    assert _refusal(model).startswith("the tensor model.norm.weight holds values that are not")


def test_a_file_that_cannot_grow_is_one_sentence(model: Path) -> None:
    with _small_files():
        assert "weights.safetensors was not written: File too large; make" in _refusal(model)


def test_a_writer_that_is_killed_is_one_sentence(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_weights(plan: Any, tensors: Any, buffers: Any, path: Path, progress: Any) -> None:
        path.write_bytes(plan.header)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(compiler, "write_weights", write_weights)
    assert _refusal(model).startswith("the process that writes the weights was killed (SIGKILL)")


@pytest.mark.parametrize("error", [AotlmError, KeyboardInterrupt])
def test_what_fails_beside_the_writer_ends_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def to_program(captured: Any, entry: str, *rest: Any) -> Any:
        if entry == "decode":
            raise error("decode fails")
        return whole(captured, entry, *rest)

    whole = compiler.to_program
    monkeypatch.setattr(compiler, "to_program", to_program)
    assert _refusal(model, error) == "decode fails"
