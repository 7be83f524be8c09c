"""Where the user's cache folder is."""

from pathlib import Path

import pytest

from aotlm_runtime.host.cache import cache_folder, user_cache


@pytest.mark.parametrize("given", [None, "", "/elsewhere"])
def test_the_cache_is_where_the_user_says_or_in_his_home(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    wanted = Path(given or "/home/someone/.cache")
    assert user_cache() == wanted
    assert cache_folder() == wanted / "aotlm"
    assert cache_folder("zig", "tmp") == wanted / "aotlm/zig/tmp"
