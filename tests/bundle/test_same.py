"""A difference of two bundles is shown by diffoscope where it is, whole or not at all."""

import shutil
import tarfile
import time
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.repro import same
from aotlm.repro.same import check_same

NAME = "lib/model.so"
NAMED = rf"^the bundles are not the same: {NAME} differs first at byte 2 \(0x63 and 0x64\)"


@pytest.fixture(params=["folders", "archives"])
def bundles(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two bundles, of which one file differs in its third byte."""
    made = []
    for side, data in (("a", b"abc"), ("b", b"abd")):
        file = tmp_path / side / NAME
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        made.append(tmp_path / side)
        if request.param == "archives":
            made[-1] = tmp_path / f"{side}.tar"
            with tarfile.open(made[-1], "w") as tar:
                tar.add(file, NAME)
    return made[0], made[1]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, beside the only folder with programs."""
    for name in ("bin", "tmp"):
        (tmp_path / name).mkdir()
    for name in ("sh", "cat", "sleep"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def _install(places: Path, script: str) -> None:
    tool = places / "bin" / "diffoscope"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def _shown(
    bundles: tuple[Path, Path], places: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[str, str]:
    """Compare them, and return what was printed on stdout and stderr."""
    with pytest.raises(AotlmError, match=NAMED):
        check_same(*bundles)
    assert list((places / "tmp").iterdir()) == []
    printed = capfd.readouterr()
    return printed.out, printed.err


def test_without_diffoscope_the_first_difference_is_named(
    bundles: tuple[Path, Path], places: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _shown(bundles, places, capfd) == ("", "")


def test_its_report_on_the_two_files_is_printed(
    bundles: tuple[Path, Path], places: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _install(places, 'echo "$2 $3"; cat "$2" "$3"; echo a warning >&2; exit 1')
    assert _shown(bundles, places, capfd) == ("first/model.so second/model.so\nabcabd", "")


def test_its_own_trouble_is_no_report(
    bundles: tuple[Path, Path], places: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _install(places, "echo half a report; echo trace >&2; echo no memory >&2; exit 2")
    assert _shown(bundles, places, capfd) == (
        "",
        "diffoscope failed with exit code 2 (no memory); the first difference is named below\n",
    )


def test_it_is_stopped_in_time_with_all_that_it_started(
    bundles: tuple[Path, Path],
    places: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(same, "TIME_LIMIT_SECONDS", 1)
    started = places / "started"
    _install(places, f'echo half; sleep 300 & echo $! >"{started}"; echo x >"$TMPDIR/x"; wait')
    assert _shown(bundles, places, capfd) == (
        "",
        "diffoscope was stopped after 1 s; the first difference is named below\n",
    )
    for _ in range(100):
        if not _runs(int(started.read_text())):
            break
        time.sleep(0.1)
    assert not _runs(int(started.read_text()))


def _runs(pid: int) -> bool:
    """Say whether a process is there and has not ended unheard."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_not_run_on_what_would_take_it_minutes(
    bundles: tuple[Path, Path],
    places: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _install(places, "echo a report")
    monkeypatch.setattr(same, "LIMIT_BYTES", 2)
    out, err = _shown(bundles, places, capfd)
    assert out == ""
    assert err.startswith("diffoscope is not run on 0 MB (limit: 0 MB); the first difference")


def test_a_file_of_one_bundle_alone_is_only_named(
    places: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _install(places, "echo a report")
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
    (tmp_path / "b" / "more").touch()
    with pytest.raises(AotlmError, match="more is only in the second bundle"):
        check_same(tmp_path / "a", tmp_path / "b")
    assert capfd.readouterr() == ("", "")
