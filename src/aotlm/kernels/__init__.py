"""Target-dependent bodies of the kernels that emitted modules declare."""

from aotlm.kernels.define import define_kernels
from aotlm.kernels.listing import list_kernels
from aotlm.kernels.measure import measure_module

__all__ = ["define_kernels", "list_kernels", "measure_module"]
