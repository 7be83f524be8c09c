"""Runs bundles made by aotlm: verifies them, maps the weights, generates text.

    model = aotlm_runtime.load("model.tar")
    for piece in model.generate("What is the capital of France?"):
        print(piece, end="", flush=True)

Importing the package loads none of its dependencies; they come with the first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aotlm_runtime.errors import (
    AotlmError,
    ArchiveInvalidError,
    BundleError,
    BundleNotFoundError,
    CallFailedError,
    ChatFileInvalidError,
    ContextExceededError,
    CpuUnsupportedError,
    ExtraMissingError,
    FileChangedError,
    FileMissingError,
    FileUnlistedError,
    HostError,
    KeyInvalidError,
    LibraryInvalidError,
    LogitsInvalidError,
    ManifestInvalidError,
    MemoryInsufficientError,
    OptionInvalidError,
    PortUnavailableError,
    PromptInvalidError,
    RequestError,
    SignatureInvalidError,
    TemplateFailedError,
    TemplateInvalidError,
    TemplateMissingError,
    TextInvalidError,
    TokenizerInvalidError,
    WeightsInvalidError,
)

if TYPE_CHECKING:
    from aotlm_runtime.chat import Chat
    from aotlm_runtime.generate.sampling import SamplingParams
    from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
    from aotlm_runtime.model import GenerationStats, Model, load

__version__ = "0.1.0"

__all__ = [
    "AotlmError",
    "ArchiveInvalidError",
    "BundleError",
    "BundleNotFoundError",
    "CallFailedError",
    "Chat",
    "ChatFileInvalidError",
    "ContextExceededError",
    "CpuUnsupportedError",
    "ExtraMissingError",
    "FileChangedError",
    "FileMissingError",
    "FileUnlistedError",
    "GenerationOptions",
    "GenerationStats",
    "HostError",
    "KeyInvalidError",
    "LibraryInvalidError",
    "LogitsInvalidError",
    "ManifestInvalidError",
    "MemoryInsufficientError",
    "Model",
    "OptionInvalidError",
    "PortUnavailableError",
    "PromptInvalidError",
    "RequestError",
    "SamplingParams",
    "SignatureInvalidError",
    "TemplateFailedError",
    "TemplateInvalidError",
    "TemplateMissingError",
    "TextDelta",
    "TextInvalidError",
    "TokenizerInvalidError",
    "WeightsInvalidError",
    "__version__",
    "load",
]

# Name -> the module that it comes from with the first use.
_PLACES = {
    "Chat": "chat",
    "GenerationOptions": "generate.stream",
    "GenerationStats": "model",
    "Model": "model",
    "SamplingParams": "generate.sampling",
    "TextDelta": "generate.stream",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"aotlm_runtime.{_PLACES[name]}"), name)
