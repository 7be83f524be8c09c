"""Where the stages put a model."""

from pathlib import Path
from typing import Final

DEFAULT_MODEL: Final = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def default_folder(model: str, dtype: str) -> Path:
    """Return artifacts/<model>-<dtype>, where <model> is the last part of the id or path."""
    return Path("artifacts") / f"{Path(model).name.removesuffix('.gguf')}-{dtype}"
