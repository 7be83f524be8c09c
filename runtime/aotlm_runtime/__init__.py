"""Runs bundles made by aotlm: verifies them, maps the weights, generates text.

    model = aotlm_runtime.load("model.tar")
    for piece in model.generate("What is the capital of France?"):
        print(piece, end="", flush=True)

Importing the package loads none of its dependencies; they come with the first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotlm_runtime.chat import Chat
    from aotlm_runtime.generate.sampling import SamplingParams
    from aotlm_runtime.generate.stream import GenerationOptions
    from aotlm_runtime.model import Model, load

__all__ = ["Chat", "GenerationOptions", "Model", "SamplingParams", "load"]

_PLACES = {
    "Chat": "chat",
    "GenerationOptions": "generate.stream",
    "SamplingParams": "generate.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"aotlm_runtime.{_PLACES.get(name, 'model')}")
    return getattr(module, name)
