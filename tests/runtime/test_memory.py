"""Memory of the kernel: files as they are, zeros of any size."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from aotlm_runtime.host import memory


def test_a_mapped_file_has_its_bytes_from_a_page_on_and_cannot_be_written(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(-128, 128, 3 * memory.PAGE + 5).astype(np.int8)
    (tmp_path / "file").write_bytes(data.tobytes())
    with (tmp_path / "file").open("rb") as file:
        mapped = memory.map_file(file.fileno(), memory.PAGE, 2 * memory.PAGE + 5)
    assert np.array_equal(mapped, data[memory.PAGE :])
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize("advice", [mmap.MADV_NORMAL, mmap.MADV_HUGEPAGE, 12345])
@pytest.mark.parametrize("size_bytes", [0, 1, memory.PAGE, memory.PAGE + 1])
def test_zeros_have_the_size_that_was_asked_for(size_bytes: int, advice: int) -> None:
    found = memory.zeros(size_bytes, advice)  # what the kernel does not know stays advice
    assert found.nbytes == size_bytes
    assert not found.any()
    found[...] = 1
