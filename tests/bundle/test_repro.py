"""The same bytes under all conditions, and a difference named where there is one."""

import getpass
import json
import os
import shutil
import socket
import sys
import tarfile
from pathlib import Path

import pytest

from aotlm.bundle.provenance import read_provenance
from aotlm.errors import AotlmError, UsageError
from aotlm.repro import rebuild
from aotlm.repro.compare import bundle_digest, compare_bundles
from aotlm.repro.conditions import FIRST, SECOND, YEAR_SECONDS, under
from aotlm.repro.recut import N_SHARDS, recut
from aotlm.repro.repro import Wanted, build_twice, repro
from aotlm.repro.same import check_same
from tests.unit.checkpoints import saved

TARGET = "x86-64-v3"
SHARED = f"lib/{TARGET}/libaotlm_model.so"
SHOWN = """
import os, pathlib, time
print(int(time.time()), oct(os.umask(0)), len(os.sched_getaffinity(0)), os.getuid(),
      hash("x"), time.strftime("%z"), time.clock_gettime(0) == 0, pathlib.Path().resolve().name)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    saved(folder)
    return folder


@pytest.fixture(scope="module")
def builds(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two builds of one model."""
    return build_twice(Wanted(str(tiny), None, "f16", TARGET), tmp_path_factory.mktemp("a place"))


@pytest.fixture
def spoiled(builds: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A bundle, and a copy of it to spoil."""
    first = builds[0] / "bundle"
    return first, Path(shutil.copytree(first, tmp_path / "second"))


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def test_a_program_really_runs_under_the_conditions(tmp_path: Path) -> None:
    seen = []
    for how in (FIRST, SECOND):
        folder = tmp_path / how.folder
        folder.mkdir()
        with under(how, folder) as run:
            code = f"import sys; sys.stdout = open('seen', 'w')\n{SHOWN}"
            assert run((sys.executable, "-c", code)) == 0
        seen.append((folder / "seen").read_text().split(maxsplit=7))
    first, second = seen
    assert int(first[0]) - int(second[0]) == pytest.approx(YEAR_SECONDS, abs=60)
    assert (first[1], second[1]) == ("0o22", "0o77")
    assert (int(first[2]), int(second[2])) == (min(2, len(os.sched_getaffinity(0))), 1)
    assert (first[3] != second[3]) == (os.geteuid() == 0)
    assert first[4] != second[4]
    assert first[5] != second[5]
    assert second[7].strip() == SECOND.folder


def test_two_builds_under_other_conditions_are_the_same_bytes(
    builds: tuple[Path, Path], tiny: Path
) -> None:
    first, second = builds
    assert len(list((second.parent / "source").rglob("*.safetensors"))) == N_SHARDS
    for path in ("bundle", "model.tar"):
        assert compare_bundles(first / path, second / path) is None
        assert bundle_digest(first / path) == bundle_digest(second / path)


def test_no_place_person_host_or_time_is_in_any_file(builds: tuple[Path, Path]) -> None:
    home = os.path.expanduser("~")
    words = [str(builds[0].parents[1]), str(builds[1]), home + "/", "aotlm-compile-", sys.prefix]
    words += [name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4]
    for build in builds:
        files = [path for path in build.rglob("*") if path.is_file()]
        assert {path.suffix for path in files} >= {".mlir", ".a", ".so", ".tar", ".json", ".h"}
        for path in files:
            data = path.read_bytes()
            assert [word for word in words if word.encode() in data] == [], path
    with tarfile.open(builds[1] / "model.tar") as tar:
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in tar} == {(0, 0, "", "", 0)}


def test_the_static_library_has_no_times_and_no_users(builds: tuple[Path, Path]) -> None:
    data = (builds[1] / "bundle" / SHARED).with_suffix(".a").read_bytes()
    assert data.startswith(b"!<arch>\n")
    at, n_members = 8, 0
    while at < len(data):  # ar: name 16, time 12, user 6, group 6, mode 8, size 10, "`\n"
        header = data[at : at + 60]
        if not header.startswith((b"/ ", b"// ")):
            assert [header[16:28].strip(), header[28:34].strip(), header[34:40].strip()] == [
                b"0",
                b"0",
                b"0",
            ]
            n_members += 1
        at += 60 + int(header[48:58]) + int(header[48:58]) % 2
    assert n_members == 7  # four modules, what measures, the pool, the digest


@pytest.mark.parametrize(
    ("name", "offset"), [(SHARED, 4097), ("weights.safetensors", 0), ("provenance.json", 77)]
)
def test_a_planted_difference_is_named_with_its_offset(
    spoiled: tuple[Path, Path], name: str, offset: int
) -> None:
    first, second = spoiled
    _flip(second / name, offset)
    found = compare_bundles(first, second)
    assert found is not None
    assert (found.name, found.offset) == (name, offset)
    byte = (first / name).read_bytes()[offset]
    with pytest.raises(AotlmError, match=rf"{name} differs first at byte {offset} \(0x{byte:02x}"):
        check_same(first, second)


def test_of_several_differences_the_first_by_name_is_told(spoiled: tuple[Path, Path]) -> None:
    first, second = spoiled
    for name in ("weights.safetensors", "manifest.json", "provenance.json"):
        _flip(second / name, 100)
    for name in ("weights.safetensors", "provenance.json", "manifest.json"):
        assert str(compare_bundles(first, second)).startswith(f"{name} differs")
        shutil.copy(first / name, second / name)


def test_missing_added_and_cut_files_are_differences(spoiled: tuple[Path, Path]) -> None:
    first, second = spoiled
    size = (second / SHARED).stat().st_size
    os.truncate(second / SHARED, size - 5)
    assert str(compare_bundles(first, second)).startswith(
        f"{SHARED} differs first at byte {size - 5}"
    )
    (second / SHARED).unlink()
    assert str(compare_bundles(first, second)) == f"{SHARED} is only in the first bundle"
    assert str(compare_bundles(second, first)) == f"{SHARED} is only in the second bundle"


def test_archives_are_compared_member_by_member_and_then_whole(
    builds: tuple[Path, Path], tmp_path: Path
) -> None:
    archive = builds[0] / "model.tar"
    other = Path(shutil.copy(archive, tmp_path / "other.tar"))
    with tarfile.open(archive) as tar:
        member = tar.getmember(SHARED)
    _flip(other, member.offset_data + 12)
    found = compare_bundles(archive, other)
    assert found is not None
    assert (found.name, found.offset) == (SHARED, 12)
    shutil.copy(archive, other)
    _flip(other, -1)
    assert "model.tar differs first at byte" in str(compare_bundles(archive, other))


def test_what_cannot_be_compared_is_one_sentence(builds: tuple[Path, Path], tmp_path: Path) -> None:
    folder, archive = builds[0] / "bundle", builds[0] / "model.tar"
    with pytest.raises(AotlmError, match="one is a folder and one is not"):
        compare_bundles(folder, archive)
    with pytest.raises(AotlmError, match=r"no bundle at .*nowhere"):
        compare_bundles(folder, tmp_path / "nowhere")
    (tmp_path / "x.tar").write_bytes(b"no archive")
    with pytest.raises(AotlmError, match="is no archive of a bundle"):
        compare_bundles(tmp_path / "x.tar", archive)


def test_a_build_that_fails_is_named_and_kept(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(AotlmError, match=r"inv import failed in .*first"):
        repro(Wanted(str(model), None, "f16", TARGET), tmp_path / "out")


def test_shards_become_one_file_again(tiny: Path, tmp_path: Path) -> None:
    from aotlm.capture.source import open_model

    recut(tiny, tmp_path / "many", 100)
    recut(tmp_path / "many", tmp_path / "one", 0)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) == N_SHARDS
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors")] == ["model.safetensors"]
    sources = [open_model(str(path)) for path in (tiny, tmp_path / "many", tmp_path / "one")]
    for name in sources[0].tensors.names():
        assert len({source.tensors.digest(name)[2] for source in sources}) == 1
    age = (tiny / "config.json").stat().st_mtime - (tmp_path / "many/config.json").stat().st_mtime
    assert age == pytest.approx(100, abs=1)


def test_rebuild_says_identical_or_what_differs(
    builds: tuple[Path, Path],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = builds[0] / "bundle" / "provenance.json"
    assert rebuild.rebuild(recorded, str(tiny), None) == 0
    assert "identical: all 4 files" in capsys.readouterr().out
    assert not (tmp_path / "artifacts" / "rebuild").exists()
    # another model in the same place, and a provenance of another commit
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    saved(other, tie_word_embeddings=True)
    statement = json.loads(recorded.read_text())
    inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    inputs[0]["annotations"]["commit"] = "0" * 40
    inputs[1]["digest"]["sha256"] = "1" * 64
    (tmp_path / "changed.json").write_text(json.dumps(statement))
    assert rebuild.rebuild(tmp_path / "changed.json", str(other), tmp_path / "again") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"note: the source was commit {'0' * 40}")
    assert lines[1].startswith(f"note: the pins had the sha256 {'1' * 64}, and these have ")
    assert lines[2].startswith("not identical: the input file config.json differs (sha256 ")
    assert "not identical: the input tensor lm_head.weight is missing" in lines
    assert any(line.startswith("not identical: the file weights.safetensors") for line in lines)
    assert (tmp_path / "again" / "bundle").is_dir()


def test_a_local_model_must_be_named_to_be_rebuilt(builds: tuple[Path, Path]) -> None:
    recorded = read_provenance(builds[0] / "bundle" / "provenance.json")
    with pytest.raises(UsageError, match=r"names no model.*--model"):
        rebuild.build_again(recorded, None, builds[0])
