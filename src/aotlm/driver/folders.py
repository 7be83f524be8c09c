"""Where the stages put a model, and what it may be stored as."""

from pathlib import Path
from typing import Final

from aotlm.errors import UsageError
from aotlm.weights.policy import POLICIES, STORED

DEMO: Final = "demo"  # the model that a package ships
DEFAULT_MODEL: Final = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def choose_dtype(model: str, dtype: str | None) -> str:
    """Return the dtype that is named, or else `stored` for a GGUF checkpoint and f16 for others.

    Raises:
        UsageError: the dtype is unknown.
    """
    if dtype is not None:
        check_dtype(dtype)
        return dtype
    return STORED if _is_gguf(model) else "f16"


def _is_gguf(model: str) -> bool:
    """Tell a GGUF checkpoint by names alone: a file, or a folder of nothing else.

    The demo is none: its first words are so near to each other that rounding changes them.
    """
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return True
    return path.is_dir() and any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))


def default_folder(model: str, dtype: str | None) -> Path:
    """Return artifacts/<model>-<dtype>, where <model> is the last part of the id or path.

    Raises:
        UsageError: the dtype is unknown.
    """
    chosen = choose_dtype(model, dtype)
    return Path("artifacts") / f"{Path(model).name.removesuffix('.gguf')}-{chosen}"


def model_folder(folder: str | None, model: str | None, dtype: str | None) -> Path:
    """Return the folder that is named, or else the default folder of the model, or of the default.

    Raises:
        UsageError: the dtype is unknown.
    """
    if dtype is not None:
        check_dtype(dtype)
    return Path(folder) if folder else default_folder(model or DEFAULT_MODEL, dtype)


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that no model can be stored as.

    Raises:
        UsageError: names those that there are.
    """
    if dtype not in POLICIES:
        raise UsageError(f"the dtype {dtype} is unknown; known are {', '.join(POLICIES)}")
