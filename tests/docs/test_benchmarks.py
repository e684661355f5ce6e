"""docs/benchmarks.md answers its questions by figures that stand in the files it links to."""

import re
from pathlib import Path

import pytest

from lab.benches.__main__ import MODULES
from lab.kit.results import PUBLISHED, tables
from lab.kit.servers import ROOT
from tests.followed_pages import DOCS

PAGE = (DOCS / "benchmarks.md").read_text()
MOST_LINES = 120
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
FIGURE = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?!\.?\w)")  # not of a name: int8, AVX-512, 1.1b

QUESTIONS, ENGINES = ([tuple(row) for row in table["rows"]] for table in tables(PAGE)[:2])
RESULTS = sorted(PUBLISHED.rglob("*.md"))


def figures(text: str) -> set[str]:
    return set(FIGURE.findall(text.replace(",", "")))


def test_the_page_stays_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_every_result_is_listed_and_named_for_its_bench_date_and_processor() -> None:
    links = {(DOCS / link).resolve() for link in LINK.findall(PAGE)}
    assert {path for path in links if path.is_relative_to(PUBLISHED)} == {*RESULTS}
    assert {path.parent.name for path in RESULTS} <= {*MODULES}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+", path.stem) for path in RESULTS)


@pytest.mark.parametrize(
    "page", [DOCS / "benchmarks.md", *RESULTS], ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [page.parent / link for link in LINK.findall(page.read_text())]
    assert [link for link in links if not link.is_file()] == []


@pytest.mark.parametrize(("question", "answer", "links"), QUESTIONS)
def test_the_figures_of_an_answer_stand_in_its_files(
    question: str, answer: str, links: str
) -> None:
    files = [(DOCS / link).read_text() for link in LINK.findall(links)]
    assert figures(answer) <= set().union(*map(figures, files)), question


@pytest.mark.parametrize(("model", "link", "ratios"), [(*row[:2], row[2:]) for row in ENGINES])
def test_the_ratios_to_other_engines_stand_in_their_file(
    model: str, link: str, ratios: tuple[str, ...]
) -> None:
    engines = ["llama.cpp", "ik_llama.cpp", "OpenVINO", "vLLM"]
    loads = ["1 user", "8 users", "32 users", "prefill"]
    [measured] = tables((DOCS / LINK.findall(link)[0]).read_text())[-1:]
    found = {
        (contestant.split()[0], load.partition(" of ")[0]): ratio.split()[0]
        for name, load, contestant, _, ratio in measured["rows"]
        if name == model and ratio
    }
    for engine, cell in zip(engines, ratios, strict=True):
        shown = [
            (engine, load, ratio)
            for load, ratio in zip(loads, cell.split(", "), strict=False)
            if ratio not in ("", "–")
        ]
        kept = [(name, load, found.get((name, load))) for name, load, _ in shown]
        assert kept == shown


def test_the_readme_has_the_figures_of_a_published_result() -> None:
    readme, published = ROOT / "README.md", PUBLISHED / "peers" / "2026-11-29-epyc-zen4.md"
    [shown] = [each for each in tables(readme.read_text()) if "prefill" in each["columns"]]
    measured = [row for row in tables(published.read_text())[0]["rows"] if row[0] == "1.1b int4"]
    for name, *rates in shown["rows"]:
        contestant = name.replace("Hearth, over HTTP", "hearth int4")
        assert rates == [row[3].partition(" ")[0] for row in measured if row[2] == contestant]
