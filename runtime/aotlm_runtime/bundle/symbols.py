"""The names of a compiled library's functions.

They begin with a prefix that was chosen when the library was compiled, so that several models can
be linked into one program. Records and documentation give them with the default one.
"""

DEFAULT_PREFIX = "aotlm"

_INTERFACE = "_mlir_ciface_"  # MLIR's, of functions that take descriptors


def with_prefix(name: str, prefix: str) -> str:
    """Return what a function is called in a library with this prefix.

    aotlm_set_threads is NAME_set_threads, _mlir_ciface_forward_decode is
    _mlir_ciface_NAME_forward_decode, and anything else, f, is NAME_f.
    """
    if prefix == DEFAULT_PREFIX:
        return name
    if name.startswith(_INTERFACE):
        return f"{_INTERFACE}{prefix}_{name.removeprefix(_INTERFACE)}"
    return f"{prefix}_{name.removeprefix(f'{DEFAULT_PREFIX}_')}"
