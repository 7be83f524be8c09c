"""The user's cache folder: what can be made or fetched again lies there."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Return $XDG_CACHE_HOME, or else ~/.cache; it need not be there.

    Raises:
        RuntimeError: there is no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def cache_folder(*names: str) -> Path:
    """Return our folder in the user's cache, or the one below it that `names` lead to.

    Raises:
        RuntimeError: there is no home folder.
    """
    return user_cache().joinpath("aotlm", *names)
