"""What a program imports from `aotlm_runtime`, and that it costs nothing before it is used."""

import subprocess
import sys

import pytest

import aotlm
import aotlm_runtime
from aotlm_runtime import errors

NAMES = (
    "Chat",
    "GenerationOptions",
    "GenerationStats",
    "Model",
    "SamplingParams",
    "TextDelta",
    "__version__",
    "load",
)
PRINT_IMPORTED = "import sys, aotlm_runtime; print(*{m.partition('.')[0] for m in sys.modules})"
DEPENDENCIES = {"archspec", "jinja2", "msgspec", "numpy", "starlette", "tokenizers", "tqdm"}


def test_the_public_names_are_these_and_every_error() -> None:
    kinds = [name for name in vars(errors) if name.endswith("Error")]
    assert sorted(aotlm_runtime.__all__) == sorted([*NAMES, *kinds])


@pytest.mark.parametrize("name", aotlm_runtime.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(aotlm_runtime, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'unload'"):
        getattr(aotlm_runtime, "unload")  # noqa: B009


def test_importing_the_package_loads_none_of_its_dependencies() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_IMPORTED], capture_output=True, text=True, check=True
    )
    assert "aotlm_runtime" in done.stdout.split()
    assert not DEPENDENCIES & set(done.stdout.split())


def test_compiler_and_runtime_have_one_version() -> None:
    assert aotlm.__version__ == aotlm_runtime.__version__
