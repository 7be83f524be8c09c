"""Every way in which a bundle can be wrong or be used wrongly, one class each.

The message of each is one sentence: what failed, what was found, what was wanted, what to do.
"""


class AotlmRuntimeError(Exception):
    """The base: the command line prints the sentence and exits with 1."""


class BundleNotFound(AotlmRuntimeError):
    """No bundle is at the path."""


class ManifestInvalid(AotlmRuntimeError):
    """A manifest cannot be read, or contradicts itself."""


class ArchiveInvalid(AotlmRuntimeError):
    """An archive is not what the packager writes."""


class FileMissing(AotlmRuntimeError):
    """A file that the manifest lists is not in the bundle."""


class FileUnlisted(AotlmRuntimeError):
    """The bundle holds something that the manifest does not list."""


class FileChanged(AotlmRuntimeError):
    """A file's size or digest is not the manifest's."""


class WeightsInvalid(AotlmRuntimeError):
    """The weight file cannot be mapped the way the compiled code reads it."""


class CpuUnsupported(AotlmRuntimeError):
    """No library of the bundle runs on this CPU."""


class LibraryInvalid(AotlmRuntimeError):
    """The compiled library cannot be loaded or belongs to another manifest."""


class CallFailed(AotlmRuntimeError):
    """The compiled code returned an error code."""


class LogitsInvalid(AotlmRuntimeError):
    """The compiled code computed something that is not a number."""


class ContextExceeded(AotlmRuntimeError):
    """More tokens than the context holds."""


class OptionInvalid(AotlmRuntimeError):
    """An option has a value that the model or the machine cannot take."""


class TokenizerInvalid(AotlmRuntimeError):
    """The tokenizer's files cannot be used."""


class TemplateFailed(AotlmRuntimeError):
    """The chat template refused the messages or has a mistake."""


class PromptInvalid(AotlmRuntimeError):
    """The prompt is not text, or has no tokens."""


class PortUnavailable(AotlmRuntimeError):
    """The server cannot listen at the address."""


class ChatFileInvalid(AotlmRuntimeError):
    """A file with a chat cannot be read or written, or is no such file."""


class TextInvalid(AotlmRuntimeError):
    """A text to be scored cannot be read, or has too few tokens."""
