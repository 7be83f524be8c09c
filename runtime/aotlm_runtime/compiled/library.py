"""Loads the compiled model for this CPU and calls its two entry points."""

import ctypes
import itertools
import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bundle.manifest import Abi, Library
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX, with_prefix
from aotlm_runtime.errors import CallFailedError, CpuUnsupportedError, LibraryInvalidError

Entry = Literal["prefill", "decode"]

_MFD_EXEC = 0x10  # linux/memfd.h: the file can be executed, whatever the default
_N_LOADED = itertools.count()


def choose_library(libraries: Sequence[Library], features: Iterable[str]) -> Library:
    """Return the library that uses the most of a CPU's features and none that it lacks.

    Raises:
        CpuUnsupportedError: every library needs something that the CPU lacks.
    """
    present = frozenset(features)
    usable = [library for library in libraries if present.issuperset(library.features)]
    if usable:
        return max(usable, key=lambda library: (len(library.features), library.target))
    missing = "; ".join(
        f"{library.target} needs {', '.join(sorted(set(library.features) - present))}"
        for library in libraries
    )
    raise CpuUnsupportedError(
        f"this CPU cannot run the bundle: {missing or 'it holds no library'}; "
        "get a bundle that was compiled for an older CPU"
    )


class CompiledModel:
    """The shared library of a bundle, loaded.

    `prefill` and `decode` take the buffers of a session; nothing is copied.
    """

    def __init__(self, shared: bytes, abi: Abi, prefix: str = DEFAULT_PREFIX) -> None:
        """Load the library whose file holds `shared`; its names begin with `prefix`.

        Raises:
            LibraryInvalidError: it cannot be loaded, or was compiled for another manifest.
        """
        self._codes, self._prefix = abi.error_codes, prefix
        self._loaded = _load(shared)
        try:
            digest = self._function("aotlm_abi_digest")
            self._set_threads = self._function("aotlm_set_threads")
            self._entries: dict[Entry, Any] = {
                "prefill": self._function(abi.prefill),
                "decode": self._function(abi.decode),
            }
        except AttributeError as error:
            raise LibraryInvalidError(
                f"the compiled library lacks a function: {error}; compile the model again"
            ) from error
        digest.restype = ctypes.c_char_p
        found = (digest() or b"").decode("ascii", "replace")
        if found != abi.digest:
            raise LibraryInvalidError(
                f"the compiled library has the ABI digest {found}, but the manifest says "
                f"{abi.digest}; compile and package the model again"
            )
        self._set_threads.argtypes = [ctypes.c_int32]
        self._set_threads.restype = None
        self._takes_context_length = abi.version > 1
        array, number = [ctypes.c_void_p], [ctypes.c_int64] * self._takes_context_length
        for function in self._entries.values():
            function.argtypes = [*array * 3, *number, *array * 3]
            function.restype = ctypes.c_int32

    def _function(self, name: str) -> Any:
        return self._loaded[with_prefix(name, self._prefix)]

    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads of all later calls, the caller's own included."""
        self._set_threads(n_threads)

    def address(self, name: str) -> int:
        """Return where a function of the library lies in memory; `name` is without prefix."""
        return ctypes.cast(self._function(name), ctypes.c_void_p).value or 0

    def set_profile(self, entries: NDArray[np.uint64] | None) -> None:
        """From now on add each parallel region to `entries`, zeros of [n, 4] u64; None ends that.

        An entry is (address of the region's function, calls, ns that the calling thread spent, ns
        of its own share of the work). Only one thread may call compiled code meanwhile.
        """
        pointer = None if entries is None else ctypes.c_void_p(entries.ctypes.data)
        set_profile = self._function("aotlm_set_profile")
        set_profile(pointer, 0 if entries is None else len(entries))

    def can_measure(self, name: str) -> bool:
        """Say whether the library has `measure_<name>`; see `measure`."""
        return hasattr(self._loaded, with_prefix(f"_mlir_ciface_measure_{name}", self._prefix))

    def measure(self, name: str, *buffers: NDArray[Any]) -> None:
        """Call a function that uses the machine as far as it goes, on the library's threads.

        read: [bytes] i8, ranges [n, 2] i64 of (offset, size) in bytes, sums [n] i64. fma, and dot
        where `can_measure` says so: turns [n] i64 of the inner loop, sums [n] f32 to start with.

        Raises:
            LibraryInvalidError: the library has no such function.
        """
        if not self.can_measure(name):
            raise LibraryInvalidError(
                f"the compiled library cannot measure {name}: it was made by an earlier version; "
                "compile and package the model again"
            )
        function = self._function(f"_mlir_ciface_measure_{name}")
        function.restype = None
        function(*(ctypes.byref(describe(buffer)) for buffer in buffers))

    def forward(
        self,
        entry: Entry,
        weights: NDArray[np.int8],
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        context_length: int,
        state: NDArray[np.int8],
        workspace: NDArray[np.int8],
        logits: NDArray[np.float32],
    ) -> None:
        """Call an entry point.

        Shapes: weights [bytes], tokens [1, T], positions [1], state [1, bytes], workspace [bytes],
        logits [1, R, V]. context_length: the positions of the state, C.

        Raises:
            CallFailedError: it returned an error code; no buffer was written then.
        """
        inputs = [describe(array) for array in (weights, tokens, positions)]
        memory = [describe(array) for array in (state, workspace, logits)]
        number = [context_length] * self._takes_context_length
        code = self._entries[entry](
            *map(ctypes.addressof, inputs), *number, *map(ctypes.addressof, memory)
        )
        if code:
            meaning = self._codes.get(str(code), "the manifest does not say what that means")
            where = " and ".join(map(str, positions.tolist())) or "none"
            raise CallFailedError(
                f"{entry} of {tokens.shape[-1]} tokens at position {where} failed "
                f"with code {code}: {meaning}"
            )


def describe(array: NDArray[Any]) -> Any:
    """Return the MLIR memref descriptor of a C-contiguous array; strides count elements."""
    descriptor = _descriptor_type(array.ndim)()
    descriptor.allocated = descriptor.aligned = array.ctypes.data
    descriptor.sizes[:] = array.shape
    stride = 1
    for axis in reversed(range(array.ndim)):
        descriptor.strides[axis] = stride
        stride *= array.shape[axis]
    return descriptor


@cache
def _descriptor_type(rank: int) -> Any:
    class Memref(ctypes.Structure):
        _fields_ = [
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            ("sizes", ctypes.c_int64 * rank),
            ("strides", ctypes.c_int64 * rank),
        ]

    return Memref


def _load(shared: bytes) -> Any:
    """Load a library from a private copy, which needs no name after it.

    The copy makes what was verified and what runs the same bytes, and gives each model threads
    of its own: the loader would return an already loaded library for an equal path.
    """
    try:
        return _load_from_memory(shared)
    except OSError as error:  # the kernel may forbid that, or there is no /proc
        reason = error
    try:
        return _load_from_disk(shared)
    except OSError as error:
        raise LibraryInvalidError(
            f"cannot load the compiled library: from memory: {reason}, from a file: {error}; check "
            "that this machine has the architecture that the bundle is for, and that TMPDIR "
            "allows execution"
        ) from error


def _load_from_memory(shared: bytes) -> Any:
    """Load from an anonymous file, which needs no folder that can be written and executed."""
    fd = _executable_memory()
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(shared)
        # Descriptors are used again, so each path goes its own way to the same place.
        return ctypes.CDLL(f"/proc/self{'/.' * next(_N_LOADED)}/fd/{fd}")
    finally:
        os.close(fd)


def _executable_memory() -> int:
    name = "libaotlm_model.so"
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # a kernel before 6.3 does not know the flag, and does without
        return os.memfd_create(name)


def _load_from_disk(shared: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="aotlm-") as folder:
        path = Path(folder, "libaotlm_model.so")
        path.write_bytes(shared)
        return ctypes.CDLL(str(path))
