"""Runs bundles made by aotlm: verifies them, maps the weights, generates text.

    model = aotlm_runtime.load("model.tar")
    for piece in model.generate("What is the capital of France?"):
        print(piece, end="", flush=True)

Importing the package loads none of its dependencies; they come with the first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotlm_runtime.model import Chat, Model, load

__all__ = ["Chat", "Model", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aotlm_runtime import model

    return getattr(model, name)
