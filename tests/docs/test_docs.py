"""Every command in the docs runs."""

from pathlib import Path

import pytest

from tests.docs.conftest import ROOT
from tests.docs.pages import printed, run_page, script

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_commands_of_a_page_run(page: Path, place: Path) -> None:
    assert script(page).count("\n") > 1
    text = run_page(page, place)
    for said in printed(page):
        before, found, text = text.partition(said)
        assert found, (
            f"{page.name} promises {said!r}, but after what else it did it printed {before}"
        )


def test_the_python_of_a_page_is_one_program(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\n```sh\necho 0\n```\n```python\nprint(a)  # → 1\n```\n")
    assert run_page(page, tmp_path) == "0\n1\n"
    assert printed(page) == ["1"]


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nsleep 60 &\necho one\nfalse\necho two\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md stopped with 1\none\n"):
        run_page(page, tmp_path)
