"""The errors of the compiler: each is one sentence that ends with what to do next.

    AotlmError                        the one base, which the runtime's errors have too
    ├── UsageError                    the words of the command were wrong
    ├── UnsupportedModelError         capture: the model needs what cannot be compiled
    ├── PassError                     passes: one raised, or broke the Graph; a defect of ours
    ├── ToolError                     codegen: a tool of the toolchain failed, or is missing
    └── BundleError, HostError, RequestError: see aotlm_runtime.errors

A stage that fails in another way raises an AotlmError itself.
"""

from aotlm_runtime.errors import AotlmError, BundleError, HostError, RequestError

__all__ = [
    "AotlmError",
    "BundleError",
    "HostError",
    "PassError",
    "RequestError",
    "ToolError",
    "UnsupportedModelError",
    "UsageError",
]


class UsageError(AotlmError):
    """The words of the command were wrong."""

    exit_code = 2


class UnsupportedModelError(AotlmError):
    """The model's configuration, ops or attention ask for something that has no lowering."""


class ToolError(AotlmError):
    """A program of the toolchain is missing, failed, or ran out of time."""


class PassError(AotlmError):
    """A pass raised, or left a Graph that is not valid: a defect of the compiler."""
