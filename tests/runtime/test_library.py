"""Choosing, loading and calling the compiled library."""

import ctypes
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aotlm_runtime import errors, load
from aotlm_runtime.bundle.manifest import Library
from aotlm_runtime.compiled.library import CompiledModel, choose_library, describe
from tests.runtime import fake


def library(target: str, *features: str) -> Library:
    paths = {"shared": "s", "static": "a", "header": "h"}
    return Library(target=target, cpu=target, features=list(features), **paths)


def test_the_library_with_most_features_of_the_cpu_is_chosen() -> None:
    libraries = [library("old"), library("mid", "avx2"), library("new", "avx2", "avx512f")]
    assert choose_library(libraries, {"avx2", "fma"}).target == "mid"
    assert choose_library(libraries, {"avx2", "avx512f"}).target == "new"
    assert choose_library(libraries, set()).target == "old"


def test_missing_features_are_named(bundle: Path, stub: bytes) -> None:
    fake.write_bundle(bundle, stub, features=["sse2", "no_such_b", "no_such_a"])
    with pytest.raises(errors.CpuUnsupportedError, match="test needs no_such_a, no_such_b;"):
        load(bundle)


def test_a_library_of_another_abi_is_refused(stub: bytes) -> None:
    with pytest.raises(errors.LibraryInvalidError, match="but the manifest says"):
        CompiledModel(stub, fake.abi(max_chunk_tokens=16))


def test_a_library_that_does_not_load_is_refused() -> None:
    with pytest.raises(errors.LibraryInvalidError, match="cannot load the compiled library"):
        CompiledModel(b"no library", fake.abi())


def test_a_library_without_an_entry_point_is_refused(stub: bytes) -> None:
    with pytest.raises(errors.LibraryInvalidError, match="no_entry"):
        CompiledModel(stub, msgspec.structs.replace(fake.abi(), decode="no_entry"))


def test_an_error_code_becomes_the_manifests_sentence(stub: bytes) -> None:
    compiled = CompiledModel(stub, fake.abi())
    arguments = (
        np.zeros(1, np.int8),
        np.zeros((1, 33), np.int64),
        np.array([7], np.int64),
        64,
        np.zeros((1, 512), np.int8),
        np.zeros(4096, np.int8),
        np.zeros((1, 1, fake.VOCAB_SIZE), np.float32),
    )
    sentence = "prefill of 33 tokens at position 7 failed with code 1: too many tokens"
    with pytest.raises(errors.CallFailedError, match=sentence):
        compiled.forward("prefill", *arguments)


def test_the_address_of_a_function_is_where_it_lies_in_memory(stub: bytes, tmp_path: Path) -> None:
    compiled = CompiledModel(stub, fake.abi())
    digest = ctypes.CFUNCTYPE(ctypes.c_char_p)(compiled.address("aotlm_abi_digest"))
    assert digest() == fake.abi().digest.encode()


def test_a_descriptor_has_the_arrays_address_sizes_and_strides() -> None:
    array = np.zeros((2, 3, 5), np.float32)
    descriptor = describe(array)
    assert descriptor.aligned == array.ctypes.data
    assert list(descriptor.sizes) == [2, 3, 5]
    assert list(descriptor.strides) == [15, 5, 1]
