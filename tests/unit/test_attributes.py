"""A kernel's declaration says what emission meant, and one that does not fit is an error."""

import dataclasses

import pytest
from mlir import ir

from aotlm.emit.attributes import (
    AttentionAttrs,
    LinearAttrs,
    read_attrs,
    read_kernel,
    write_attrs,
)
from aotlm.errors import AotlmError

LINEAR = LinearAttrs(64, 9, 20, "f16", "panels", bias=True, gate="silu", scale=0.1)
ATTENTION = AttentionAttrs("flash", 4, 2, 8, 16, "bf16", 8**-0.5, window=1 << 20)


@pytest.mark.parametrize("attrs", [LINEAR, ATTENTION], ids=lambda attrs: attrs.kernel)
def test_what_is_written_is_read_as_it_was(attrs: LinearAttrs | AttentionAttrs) -> None:
    with ir.Context():
        written = ir.Attribute.parse(str(write_attrs(attrs)))
        assert read_kernel(written) == attrs.kernel
        assert read_attrs(written, type(attrs)) == attrs


def test_what_is_off_is_not_written() -> None:
    with ir.Context():
        plain = dataclasses.replace(LINEAR, bias=False, gate=None)
        names = {item.name for item in ir.DictAttr(write_attrs(plain))}
        assert names == {"n", "k", "n_out", "weight", "layout", "scale", "kernel"}


@pytest.mark.parametrize("text", ["{k = 9 : i64}", '{groups = 2 : i64, kernel = "flash"}'])
def test_another_versions_declaration_says_to_import_again(text: str) -> None:
    with ir.Context(), pytest.raises(AotlmError, match=r"does not fit .*inv import --force"):
        read_attrs(ir.Attribute.parse(text), AttentionAttrs)


def test_an_attribute_of_another_type_is_an_error() -> None:
    with ir.Context(), pytest.raises(AotlmError, match=r"unknown type; run inv import --force"):
        read_kernel(ir.Attribute.parse("{kernel = [1]}"))
