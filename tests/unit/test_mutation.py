"""Faults are where they should be, one at a time, and a run tells which of them no test notices."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from aotlm.errors import UsageError
from tests.mutation.areas import AREAS, ROOT, Area
from tests.mutation.operators import mutants_of
from tests.mutation.report import table, write
from tests.mutation.run import COPIED, Outcome, Tree, chosen_areas, difference, mutate

AREA = Area("src/pack", ("test_pack",))
MODULE = """UNUSED = 10

def wait(n: int) -> int:
    while n > 0:
        n -= 1
    return n
"""


def changed(source: str) -> list[tuple[str, str]]:
    """Return each fault of a module as what was there and what is."""
    text = source.encode()
    return [(text[m.begin : m.end].decode(), m.text) for m in mutants_of("m.py", source)]


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a < b <= c", [("a < b <= c", "(a < b < c)"), ("a < b <= c", "(a <= b <= c)")]),
        ("a is None", [("a is None", "(a is not None)")]),
        ("x = a + b * c", [("a + b * c", "(a - b * c)"), ("b * c", "(b + c)")]),
        ("x = not a", [("not a", "(a)")]),
        ("x = True", [("True", "(False)")]),
        ("x = (7, 0.5, 0.0)", [("7", "(8)"), ("0.5", "(1.0)"), ("0.0", "(1.0)")]),
        ("if a: b()", [("a", "(not a)"), ("b()", "pass")]),
        ("x = [a for a in b if a.c]", [("a.c", "(not a.c)")]),
        ("def f(): return a", [("return a", "return None")]),
        ("a += b", [("a += b", "a -= b"), ("a += b", "pass")]),
        ("raise E", [("raise E", "pass")]),
        ("for a in b: break", [("break", "pass")]),
        ("x = arith.addi(a, b)", [("arith.addi", "(arith.subi)")]),
        ("x = P.ule", [("P.ule", "(P.ult)")]),
        ("x = 'ä' + 'b'", [("'ä' + 'b'", "('ä' - 'b')")]),
    ],
)
def test_each_operator_has_one_fault_of_its_own(source: str, faults: list[tuple[str, str]]) -> None:
    assert changed(source) == faults


@pytest.mark.parametrize(
    "source",
    [
        '"""What a + b is."""',
        "def f(a: int | None) -> A[1]: return None",
        "x: A | None",
        "@dataclass(frozen=True)\nclass A(B, frozen=True): pass",
        "x = f'{a + 1}'",
        "def f(): return",
    ],
)
def test_what_no_test_could_notice_has_no_faults(source: str) -> None:
    assert changed(source) == []


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.path)
def test_every_area_has_faults_and_tests(area: Area) -> None:
    mutants = area.mutants()
    assert len(mutants) >= 40
    assert all(area.tests_of(mutants[0].path))
    for pattern in (*area.tests, *area.slow):
        assert list(ROOT.glob(f"tests/{pattern}.py")), pattern
    for mutant in mutants[:: len(mutants) // 20]:
        source = (ROOT / mutant.path).read_bytes()
        assert mutant.applied(source) != source
        if mutant.path.endswith(".py"):
            ast.parse(mutant.applied(source))


def test_tests_that_are_named_after_a_module_come_first() -> None:
    area = next(area for area in AREAS if area.path.endswith("/bundle"))
    ((first, *others),) = area.tests_of(f"{area.path}/verification.py")
    assert first == "tests/runtime/test_verification.py"
    assert "tests/runtime/test_archive.py" in others


def test_slow_tests_run_after_the_others() -> None:
    area = Area("src/pack", ("unit/test_dims",), ("unit/test_trace",))
    assert area.tests_of("src/pack/trace.py") == [
        ["tests/unit/test_dims.py"],
        ["tests/unit/test_trace.py"],
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one module, whose test sees results and not the way to them."""
    root = tmp_path / "checkout"
    for name in COPIED:
        (root / name).mkdir(parents=True) if "." not in name[1:] else (root / name).touch()
    (root / "src/pack").mkdir()
    (root / "src/pack/pack.py").write_text(MODULE)
    (root / "tests/test_pack.py").write_text(
        "from pack.pack import wait\n\ndef test_it() -> None:\n    assert wait(3) == 0\n"
    )
    return root


def test_a_run_tells_what_is_noticed_and_what_survives(checkout: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", checkout)
    (tests,) = AREA.tests_of("src/pack/pack.py", checkout)
    assert tests == ["tests/test_pack.py"]
    assert tree.passes(tests)
    tried = {"(11)": False, "(n >= 0)": True, "n += 1": True}  # the last one never ends
    for mutant in AREA.mutants(checkout):
        if mutant.text in tried:
            limit_seconds = 5 if mutant.text == "n += 1" else 100
            noticed = tree.notices(mutant, tests, limit_seconds)
            assert noticed == tried.pop(mutant.text), mutant.text
    assert not tried
    assert (tree.folder / "src/pack/pack.py").read_text() == MODULE
    assert tree.passes(tests)
    assert (checkout / "src/pack/pack.py").read_text() == MODULE


def test_the_report_counts_by_folder_and_holds_the_survivors(tmp_path: Path) -> None:
    survivor = next(iter(AREAS[0].mutants()))
    outcomes = [Outcome(AREAS[0].path, 40, (survivor,), 1.0), Outcome("none", 0, (), 0.0)]
    text = table(outcomes, 40, 7)
    assert f"| `{AREAS[0].path}` | 40 | 39 | 1 | 0.97 |" in text
    assert "--seed=7" in text
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    write(text, outcomes, str(tmp_path / "out"), str(summary))
    assert summary.read_text() == f"before\n{text}"
    assert (tmp_path / "out/mutation.md").read_text() == text
    diff = (tmp_path / "out/survivors.diff").read_text()
    assert diff == difference(survivor)
    assert diff.startswith(f"--- a/{survivor.path}\n")


def test_a_path_chooses_an_area_or_what_is_below_it() -> None:
    assert chosen_areas(None) == list(AREAS)
    assert [area.path for area in chosen_areas("src/aotlm/emit/")] == ["src/aotlm/emit"]
    assert [area.path for area in chosen_areas("runtime/aotlm_runtime")] == [
        "runtime/aotlm_runtime"
    ]
    assert len(chosen_areas("runtime")) == 9
    with pytest.raises(UsageError, match=r"nothing is mutated at docs; there is runtime/"):
        chosen_areas("docs")


def test_a_run_counts_the_faults_that_its_seed_draws(checkout: Path) -> None:
    notes: list[str] = []
    (outcome,) = mutate([AREA], 1, 4, notes.append, checkout)
    drawn = AREA.mutants(checkout)[random.Random(4).sample(range(7), 1)[0]]
    assert (outcome.path, outcome.n_mutants) == ("src/pack", 1)
    assert outcome.survivors == ((drawn,) if drawn.text == "(11)" else ())
    assert notes[0] == "src/pack: its tests without a fault"


def test_tests_that_fail_without_a_fault_are_an_error(checkout: Path) -> None:
    (checkout / "tests/test_pack.py").write_text("def test_it() -> None:\n    assert False\n")
    with pytest.raises(UsageError, match=r"the tests of src/pack fail without any fault"):
        mutate([AREA], 1, 0, lambda text: None, checkout)
