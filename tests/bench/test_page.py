"""The page of results: one section for each kind of CPU."""

from dataclasses import replace

from aotlm_runtime.bench.measure import Machine
from aotlm_runtime.bench.process import Process
from aotlm_runtime.bench.report import Report
from bench.page import _TOP, to_section, with_section
from bench.results import BundleResults, Computer, Results, this_computer

ZEN3 = Computer("AMD EPYC", 2, 8 << 30, 25, 1, ("avx2", "f16c"))
ZEN4 = replace(ZEN3, model=17, flags=("avx2", "avx512f", "avx512_bf16"))
ZEN5 = replace(ZEN4, family=26, model=2)


def section(computer: Computer, name: str = "demo") -> str:
    machine = Machine(2, 1e9, 2e9, 3e9, "fma", 1e11, 2e11)
    report = Report("m", "f16", "v3", 2000, 1000, 1, 0.1, 0.2, machine, Process(0.5, 10), [])
    return to_section(Results(computer, [BundleResults(name, report, [], [], "where")]))


def headings(page: str) -> list[str]:
    return [line.strip("# ") for line in page.splitlines() if line.startswith("## ")]


def test_a_section_says_what_tells_the_cpu_from_others_of_its_name() -> None:
    lines = section(ZEN4).splitlines()
    assert lines[0] == "## AMD EPYC, family 25 model 17"
    assert lines[2] == (
        "Measured on 2 cores, 8 GiB. Of its flags these matter: avx2, avx512f, avx512_bf16."
    )


def test_a_run_replaces_the_section_of_its_own_cpu_only() -> None:
    page = ""
    for computer in (ZEN3, ZEN4, ZEN5):
        page = with_section(page, section(computer, "old"))
    again = with_section(page, section(ZEN4, "new"))
    kinds = [f"AMD EPYC, family {kind}" for kind in ("25 model 1", "25 model 17", "26 model 2")]
    assert headings(page) == headings(again) == kinds
    assert again.count("### old") == 2
    assert again == page.replace(section(ZEN4, "old"), section(ZEN4, "new"))
    assert again.startswith(_TOP)


def test_the_same_results_give_the_same_page() -> None:
    page = with_section("", section(ZEN3))
    assert with_section(page, section(ZEN3)) == page


def test_a_section_without_a_model_is_replaced_by_one_of_its_family() -> None:
    page = with_section("", section(replace(ZEN5, model=None), "old"))
    assert headings(page) == ["AMD EPYC, family 26"]
    again = with_section(page, section(ZEN5, "new"))
    assert headings(again) == ["AMD EPYC, family 26 model 2"]
    assert "### old" not in again
    assert headings(with_section(page, section(ZEN4))) == [
        *headings(page),
        headings(section(ZEN4))[0],
    ]


def test_this_computer_is_told_by_its_kind() -> None:
    computer = this_computer()
    assert computer.family
    assert computer.model is not None
    assert "avx2" in computer.flags
