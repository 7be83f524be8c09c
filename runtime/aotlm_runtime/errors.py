"""Every way in which something can fail that a user can act on, one class each.

    AotlmError                        the one base, also of the compiler's errors
    ├── BundleError                   what was built is not as it must be
    │   ├── BundleNotFoundError
    │   ├── ManifestInvalidError
    │   ├── ArchiveInvalidError
    │   ├── FileMissingError
    │   ├── FileUnlistedError
    │   ├── FileChangedError
    │   ├── SignatureInvalidError
    │   ├── WeightsInvalidError
    │   ├── LibraryInvalidError
    │   ├── TokenizerInvalidError
    │   ├── TemplateInvalidError
    │   ├── CallFailedError
    │   └── LogitsInvalidError
    ├── HostError                     this machine cannot do what was asked
    │   ├── CpuUnsupportedError
    │   ├── ExtraMissingError
    │   ├── MemoryInsufficientError
    │   └── PortUnavailableError
    └── RequestError                  what was asked cannot be
        ├── ContextExceededError
        ├── OptionInvalidError
        ├── PromptInvalidError
        ├── TemplateFailedError
        ├── TemplateMissingError
        ├── ChatFileInvalidError
        ├── KeyInvalidError
        └── TextInvalidError

The message of each is one sentence: what failed, what was found, what was wanted, what to do.
"""


class AotlmError(Exception):
    """The base: a command prints the sentence and leaves with `exit_code`."""

    exit_code = 1


class BundleError(AotlmError):
    """What was built is not as it must be: build, package or fetch it again."""


class BundleNotFoundError(BundleError):
    """No bundle is at the path."""


class ManifestInvalidError(BundleError):
    """A manifest cannot be read, or contradicts itself."""


class ArchiveInvalidError(BundleError):
    """An archive is not what the packager writes."""


class FileMissingError(BundleError):
    """A file that the manifest lists is not in the bundle."""


class FileUnlistedError(BundleError):
    """The bundle holds something that the manifest does not list."""


class FileChangedError(BundleError):
    """A file's size or digest is not the manifest's."""


class SignatureInvalidError(BundleError):
    """There is no signature, or it is not true."""


class WeightsInvalidError(BundleError):
    """The weight file cannot be mapped the way the compiled code reads it."""


class LibraryInvalidError(BundleError):
    """The compiled library cannot be loaded or belongs to another manifest."""


class TokenizerInvalidError(BundleError):
    """The tokenizer's files cannot be used."""


class TemplateInvalidError(BundleError):
    """The chat template has a mistake in its syntax."""


class CallFailedError(BundleError):
    """The compiled code returned an error code."""


class LogitsInvalidError(BundleError):
    """The compiled code computed something that is not a number."""


class HostError(AotlmError):
    """This machine cannot do what was asked."""


class CpuUnsupportedError(HostError):
    """No library of the bundle runs on this CPU."""


class ExtraMissingError(HostError):
    """A package that only some commands need is not installed."""


class MemoryInsufficientError(HostError):
    """What was asked needs more memory than there is."""


class PortUnavailableError(HostError):
    """The server cannot listen at the address."""


class RequestError(AotlmError):
    """What was asked cannot be: ask for something else."""


class ContextExceededError(RequestError):
    """More tokens than the context holds."""


class OptionInvalidError(RequestError):
    """An option has a value that the model or the machine cannot take."""


class PromptInvalidError(RequestError):
    """The prompt is not text, or has no tokens."""


class TemplateFailedError(RequestError):
    """The chat template refused the messages."""


class TemplateMissingError(RequestError):
    """Messages need a chat template, and the model has none."""


class ChatFileInvalidError(RequestError):
    """A file with a chat cannot be read or written, or is no such file."""


class KeyInvalidError(RequestError):
    """A key cannot be read, or is of a kind that cannot be used."""


class TextInvalidError(RequestError):
    """A text to be scored cannot be read, or has too few tokens."""
