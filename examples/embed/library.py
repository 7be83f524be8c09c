"""Print the library's folder in a bundle: of the target that is named, or the best for this CPU.

python examples/embed/library.py BUNDLE [TARGET]
"""

import sys
from pathlib import Path

from aotlm_runtime.bundle.manifest import Library, read_manifest
from aotlm_runtime.compiled.library import choose_library
from aotlm_runtime.errors import AotlmError
from aotlm_runtime.host.cpu import cpu_features


def find(bundle: Path, target: str | None) -> Library:
    """Return the library of a bundle's folder; without a target the best one that runs here."""
    libraries = read_manifest(bundle / "manifest.json").libraries
    if target is None:
        return choose_library(libraries, cpu_features())
    for library in libraries:
        if library.target == target:
            return library
    known = ", ".join(library.target for library in libraries)
    sys.exit(f"error: {bundle} has no library for {target}; it has {known}")


if __name__ == "__main__":
    bundle, *targets = sys.argv[1:]
    try:
        library = find(Path(bundle), targets[0] if targets else None)
    except AotlmError as error:
        sys.exit(f"error: {error}")
    print((Path(bundle) / library.static).parent)
