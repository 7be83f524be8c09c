"""What a kernel's declaration says: emission writes it, the kernel's body is built from it.

It is the dictionary `aotlm.kernel` on a private function. A key that is missing has its field's
default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from mlir import ir

from aotlm.errors import AotlmError

ATTRIBUTE: Final = "aotlm.kernel"
_MAKE: Final[Mapping[type, Callable[[Any], ir.Attribute]]] = {
    bool: ir.BoolAttr.get,
    int: lambda value: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value),
    float: ir.FloatAttr.get_f64,
    str: ir.StringAttr.get,
}
_READABLE: Final = (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr)


@dataclass(frozen=True)
class LinearAttrs:
    """y [M, n_out] f32 = epilogue(x [M, k] · wᵀ), with w [n, k] stored as `weight` in `layout`.

    With a gate, n is twice n_out, rounded up to a gate's group. `scale` and `softcap` are the
    epilogue's; see `kernels/epilogue.py` for its order.
    """

    n: int
    k: int
    n_out: int
    weight: str
    layout: str
    bias: bool = False
    residual: bool = False
    gate: str | None = None
    activation: str | None = None
    scale: float | None = None
    softcap: float | None = None
    kernel: str = "linear"


@dataclass(frozen=True)
class AttentionAttrs:
    """Causal attention: H = n_heads, G = n_kv_heads, D = head_dim, E = v_head_dim.

    Neighbouring query heads share a KV head. `cache` is the dtype of both caches; scores are
    q · k · scale, then capped; a row sees the last `window` positions, its own among them.
    """

    kernel: str
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    cache: str
    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def heads_per_kv_head(self) -> int:
        """Return H / G, the query heads of one KV head."""
        return self.n_heads // self.n_kv_heads


Attrs = TypeVar("Attrs", bound="LinearAttrs | AttentionAttrs")


def write_attrs(attrs: LinearAttrs | AttentionAttrs) -> ir.Attribute:
    """Return the declaration's dictionary, without what is None or False."""
    values = {field.name: getattr(attrs, field.name) for field in dataclasses.fields(attrs)}
    return ir.DictAttr.get(
        {
            name: _MAKE[type(value)](value)
            for name, value in values.items()
            if value is not None and value is not False
        }
    )


def read_kernel(attribute: ir.Attribute) -> str:
    """Return the name of the kernel that a declaration's dictionary asks for."""
    return str(_read(attribute).get("kernel"))


def read_attrs(attribute: ir.Attribute, kind: type[Attrs]) -> Attrs:
    """Return what a declaration's dictionary says.

    Raises:
        AotlmError: it has other keys than `kind` has fields, as another version's import may.
    """
    try:
        return kind(**_read(attribute))
    except TypeError as error:
        raise AotlmError(
            f"a kernel's declaration does not fit this version ({error}); run inv import --force "
            "again"
        ) from None


def _read(attribute: ir.Attribute) -> dict[str, Any]:
    return {item.name: _value(item.attr) for item in ir.DictAttr(attribute)}


def _value(attribute: ir.Attribute) -> Any:
    if isinstance(attribute, _READABLE):
        return attribute.value
    raise AotlmError(
        f"a kernel's attribute {attribute} has an unknown type; run inv import --force again"
    )
