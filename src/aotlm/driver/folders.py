"""Where the stages put a model, and what it may be stored as."""

from pathlib import Path
from typing import Final

from aotlm.errors import UsageError
from aotlm.weights.policy import POLICIES

DEFAULT_MODEL: Final = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def default_folder(model: str, dtype: str) -> Path:
    """Return artifacts/<model>-<dtype>, where <model> is the last part of the id or path."""
    return Path("artifacts") / f"{Path(model).name.removesuffix('.gguf')}-{dtype}"


def model_folder(folder: str | None, model: str | None, dtype: str) -> Path:
    """Return the folder that is named, or else the default folder of the model, or of the default.

    Raises:
        UsageError: the dtype is unknown.
    """
    check_dtype(dtype)
    return Path(folder) if folder else default_folder(model or DEFAULT_MODEL, dtype)


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that no model can be stored as.

    Raises:
        UsageError: names those that there are.
    """
    if dtype not in POLICIES:
        raise UsageError(f"the dtype {dtype} is unknown; known are {', '.join(POLICIES)}")
