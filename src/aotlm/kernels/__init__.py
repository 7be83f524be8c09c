"""Target-dependent kernel bodies, emitted with the MLIR bindings."""

from aotlm.kernels.fill import fill_kernels

__all__ = ["fill_kernels"]
