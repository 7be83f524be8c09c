"""Every command in the docs runs."""

from pathlib import Path

import pytest

from tests.docs.conftest import ROOT
from tests.docs.pages import run_page, script

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_commands_of_a_page_run(page: Path, place: Path) -> None:
    assert script(page).count("\n") > 1
    run_page(page, place)


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nsleep 60 &\necho one\nfalse\necho two\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md stopped with 1\none\n"):
        run_page(page, tmp_path)
