"""The provenance: whole, truthful, and free of what varies."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aotlm.bundle.package import package
from aotlm.bundle.provenance import (
    FILE,
    PINS,
    SOURCE,
    TENSOR,
    describe_build,
    read_provenance,
)
from aotlm.capture.inputs import input_files
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from aotlm.passes.mark_storage import MarkStorage
from aotlm.support.build_record import ORIGIN_VARIABLE, Origin, build_record, write_build_record
from aotlm.weights.policy import POLICIES
from aotlm_runtime.bundle.manifest import Library, SourceTensor, encode, read_manifest
from aotlm_runtime.bundle.reader import open_bundle
from tests.bundle.conftest import KNOWN, TARGET
from tests.unit.checkpoints import saved
from tests.unit.handwritten import write_import

LIBRARY = Library(target=TARGET, cpu=TARGET, features=[], shared="s", static="a", header="h")


@pytest.fixture(scope="module")
def packaged(stages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = Path(shutil.copytree(stages, tmp_path_factory.mktemp("packaged") / stages.name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ORIGIN_VARIABLE, encode(KNOWN).decode())
        package(out)
    return out


@pytest.fixture
def statement(packaged: Path) -> dict[str, Any]:
    return dict(json.loads((packaged / "bundle" / "provenance.json").read_text()))


def test_it_is_an_in_toto_statement_with_slsa_provenance(statement: dict[str, Any]) -> None:
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {
        "model": "handwritten",
        "revision": None,
        "dtype": "f32",
        "targets": [TARGET],
    }
    assert set(statement["predicate"]["runDetails"]) == {"builder"}


def test_its_subjects_are_all_files_but_the_manifest_and_itself(
    packaged: Path, statement: dict[str, Any]
) -> None:
    bundle = packaged / "bundle"
    found = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    paths = [path for path in bundle.rglob("*") if path.is_file()]
    assert found == {
        path.relative_to(bundle).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.name not in ("manifest.json", "provenance.json")
    }
    listed = {file.path for file in read_manifest(bundle / "manifest.json").files}
    assert listed == found.keys() | {"provenance.json"}
    with open_bundle(bundle) as opened:
        opened.verify()


def test_it_names_the_commit_the_pins_and_every_step(statement: dict[str, Any]) -> None:
    definition = statement["predicate"]["buildDefinition"]
    source, pins = definition["resolvedDependencies"][:2]
    assert source["digest"]["gitCommit"] == KNOWN.commit
    assert source["annotations"] == {"kind": SOURCE, "commit": KNOWN.commit, "dirty": False}
    assert (pins["name"], pins["digest"]) == (PINS, {"sha256": KNOWN.pins_sha256})
    stages = {stage["stage"]: stage for stage in definition["internalParameters"]["stages"]}
    assert list(stages) == ["import", f"compile {TARGET}", "package"]
    steps = stages[f"compile {TARGET}"]["steps"]
    assert steps[0] == "define-kernels"
    assert any(step.startswith("llc -O3 ") and "-mcpu=x86-64-v3" in step for step in steps)
    assert steps[-1].startswith("zig cc -target x86_64-linux-gnu.2.28 -shared")
    assert "ziglang" in stages["package"]["tools"]


def test_the_import_names_its_passes_tensors_and_files(tmp_path: Path) -> None:
    from aotlm.driver.compiler import import_model

    saved(tmp_path / "model")
    import_model(str(tmp_path / "model"), dtype="bf16", out=tmp_path / "out")
    record = json.loads((tmp_path / "out" / "import" / "build.json").read_text())
    assert record["steps"][0] == "Canonicalize(name='canonicalize')"
    assert repr(MarkStorage(POLICIES["bf16"])) in record["steps"]
    names = [file["name"] for file in record["inputs"]]
    assert names == ["config.json", "generation_config.json"]


def test_inputs_are_sorted_and_differ_by_name_dtype_shape_or_bytes(tmp_path: Path) -> None:
    model = write_import(tmp_path)
    names = ("b", "a")
    tensors = [SourceTensor(name=n, dtype="F16", shape=[2, 3], sha256="c" * 64) for n in names]
    records = [build_record("import", ())]
    made = describe_build(replace(model, source_tensors=tensors), records, [LIBRARY], [])
    assert list(made.inputs(TENSOR)) == ["a", "b"]
    assert made.inputs(FILE) == {}
    for change in ({"dtype": "BF16"}, {"shape": [3, 2]}, {"sha256": "d" * 64}):
        others = [tensors[0], replace(tensors[1], **change)]
        other = describe_build(replace(model, source_tensors=others), records, [LIBRARY], [])
        assert other.inputs(TENSOR)["a"] != made.inputs(TENSOR)["a"]
        assert other.inputs(TENSOR)["b"] == made.inputs(TENSOR)["b"]


def test_a_prefix_is_told_where_it_is_not_the_default(tmp_path: Path) -> None:
    model, records = write_import(tmp_path), [build_record("import", ())]
    told = []
    for prefix in ("aotlm", "qwen"):
        made = describe_build(model, records, [replace(LIBRARY, prefix=prefix)], [])
        told.append(made.predicate.build_definition.external_parameters)
    assert [parameters.prefixes for parameters in told] == [{}, {TARGET: "qwen"}]
    assert b"prefixes" not in encode(told[0])


def test_stages_of_other_commits_are_told_apart(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(packaged, tmp_path / "out"))
    later = Origin(commit="c" * 40, dirty=True, pins_sha256="unknown")
    monkeypatch.setenv("AOTLM_ORIGIN", encode(later).decode())
    package(out)
    sources = read_provenance(out / "bundle" / "provenance.json").inputs(SOURCE)
    assert [(name, item.annotations["commit"]) for name, item in sources.items()] == [
        ("source of import and compile x86-64-v3", KNOWN.commit),
        ("source of package", later.commit),
    ]


def test_pins_that_are_unknown_have_no_digest(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(packaged, tmp_path / "out"))
    unknown = Origin(commit="unknown", dirty=None, pins_sha256="unknown")
    monkeypatch.setenv("AOTLM_ORIGIN", encode(unknown).decode())
    package(out)
    made = read_provenance(out / "bundle" / "provenance.json")
    pins = {name: item.digest for name, item in made.inputs(PINS).items()}
    assert pins == {
        f"{PINS} of import and compile x86-64-v3": {"sha256": KNOWN.pins_sha256},
        f"{PINS} of package": {},
    }
    assert list(made.inputs(SOURCE)["source of package"].digest) == ["sha256"]


def test_a_stage_without_its_record_is_named(packaged: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(packaged, tmp_path / "out"))
    (out / "import" / "build.json").write_text("{}")
    with pytest.raises(AotlmError, match=r"build\.json is broken.*run inv import --force again"):
        package(out)
    write_build_record(build_record("import", ()), out / "import")
    (out / "lib" / TARGET / "build.json").unlink()
    with pytest.raises(AotlmError, match=r"build\.json is missing; run inv compile again"):
        package(out)


def test_what_is_no_provenance_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    with pytest.raises(AotlmError, match=r"cannot read .*: No such file"):
        read_provenance(path)
    for text in ("", "[]", '{"_type": "https://in-toto.io/Statement/v1"}'):
        path.write_text(text)
        with pytest.raises(AotlmError, match=r"is no provenance of a bundle \(.*\); give"):
            read_provenance(path)


def test_shards_and_other_files_of_a_folder_are_no_inputs(tmp_path: Path) -> None:
    model = saved(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").is_file()
    (tmp_path / "many" / "trainer_state.json").write_text("{}")
    first, second = (input_files(open_model(str(tmp_path / name))) for name in ("one", "many"))
    assert first == second
    (tmp_path / "many" / "config.json").write_text(
        (tmp_path / "many" / "config.json").read_text() + "\n"
    )
    assert input_files(open_model(str(tmp_path / "many"))) != first
