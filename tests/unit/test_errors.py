"""The errors are one tree, and both modules draw it as it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import aotlm.errors
import aotlm_runtime.errors
from aotlm_runtime.errors import AotlmError
from aotlm_runtime.server.api_errors import api_error_of

ROOT = Path(__file__).parents[2]
MIDDLE = ("BundleError", "HostError", "RequestError")


def _below(kind: type[AotlmError]) -> Iterator[type[AotlmError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def _drawn(kind: type[AotlmError], lead: str = "") -> Iterator[str]:
    children = kind.__subclasses__()
    for child in children:
        is_last = child is children[-1]
        yield f"{lead}{'└' if is_last else '├'}── {child.__name__}"
        yield from _drawn(child, lead + ("    " if is_last else "│   "))


def test_the_runtimes_errors_are_the_tree_that_the_module_draws() -> None:
    lines = (aotlm_runtime.errors.__doc__ or "").splitlines()
    # without what is said beside a name
    seen = [line.removeprefix("    ").partition("Error ")[0] for line in lines if "── " in line]
    kinds = [kind for kind in AotlmError.__subclasses__() if kind.__name__ in MIDDLE]
    assert [kind.__name__ for kind in kinds] == list(MIDDLE)
    expected = []
    for kind in kinds:
        branch, lead = ("└", "    ") if kind is kinds[-1] else ("├", "│   ")
        expected += [f"{branch}── {kind.__name__}", *_drawn(kind, lead)]
    assert [line.removesuffix("Error") for line in expected] == [
        line.removesuffix("Error") for line in seen
    ]


def test_the_compiler_adds_its_own_under_the_same_base() -> None:
    assert aotlm.errors.AotlmError is AotlmError
    drawn = aotlm.errors.__doc__ or ""
    for name in aotlm.errors.__all__:
        assert name in drawn
        assert issubclass(getattr(aotlm.errors, name), AotlmError)


def test_every_error_says_that_it_is_one_and_what_it_means() -> None:
    for kind in _below(AotlmError):
        assert kind.__name__.endswith("Error")
        assert kind.__doc__


def test_no_other_module_makes_an_error_of_its_own() -> None:
    known = {AotlmError.__name__, *(kind.__name__ for kind in _below(AotlmError))}
    for path in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("runtime/aotlm_runtime/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = getattr(node, "bases", [])
            made = known & {ast.unparse(base).rpartition(".")[2] for base in bases}
            assert not made or path.name == "errors.py", f"{path}: {ast.unparse(node)}"


@pytest.mark.parametrize("kind", list(_below(AotlmError)))
def test_the_server_blames_the_request_for_requests_alone(kind: type[AotlmError]) -> None:
    is_at_fault = issubclass(kind, aotlm_runtime.errors.RequestError)
    assert api_error_of(kind("why")).status == (400 if is_at_fault else 500)
