"""The errors a user can meet: each is one sentence that ends with what to do next."""


class AotlmError(Exception):
    """A step failed for a reason the user can act on; the tasks print it and exit with 1."""


class UsageError(AotlmError):
    """The words of the command were wrong; the tasks print it and exit with 2."""
