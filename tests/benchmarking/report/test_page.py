"""The page in a parser: whole, self-contained, every section there and filled where it can be."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from benchmarking.analysis.fit import fit
from benchmarking.analysis.fit_points import Places, fit_points
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.search import Shape
from benchmarking.records import ClientOverhead, Run
from benchmarking.report.page import report_html
from tests.benchmarking.made_runs import made_record, made_run
from tests.benchmarking.simulated_server import SimulatedServer

SECTIONS = (
    "about",
    "rows",
    "throughput-latency",
    "bands",
    "goodput",
    "cdf",
    "experts",
    "gantt",
    "time-series",
    "batches",
    "comparison",
    "switching",
    "acceptance",
    "fit",
    "client",
)
PICTURES = set(SECTIONS) - {"about", "rows", "experts", "client"}
VOID = {"meta", "br"}
SLO = Slo(ttft_ms=30, itl_ms=5)


class Page(HTMLParser):
    """Checks that every element is closed, and gathers what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: dict[str, set[str]] = {}
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        self._note(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag == "section":
            self.sections[str(named["id"])] = set()
        elif self.sections:
            self.sections[list(self.sections)[-1]].add(tag)
        self.addresses += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href") and v]


def full_run(row_s: float = 0.00016) -> Run:
    """Closed and open loops, two experts that take turns, a draft, a failure."""
    server = SimulatedServer(rows=4, row_s=row_s)
    a, b = Shape("a", 64, 8), Shape("b", 64, 8)
    loads = [a.at_concurrency(n, 6) for n in (1, 2, 6)]
    loads += [shape.at_rate(qps, 1.0) for qps in (20, 40) for shape in (a, b)]
    rows = [server.measure(load, seed)[1] for seed, load in enumerate(loads)]
    rows[-1].append(made_record(model="b", error="503"))
    rows[-2] = [
        replace(
            r,
            usage=replace(r.usage, acceptance_rate=0.6, tokens_per_step=2.0, switching_time_s=0.2),
        )
        for r in rows[-2]
        if r.usage is not None
    ]
    run = made_run(rows, loads)
    overhead = ClientOverhead(0.02, 1e-4, 2e-3, 3e-3, stolen_share=0.034)
    return replace(run, rows=tuple(replace(row, overhead=overhead) for row in run.rows))


@pytest.fixture(scope="module")
def full_page() -> str:
    run = full_run()
    return report_html(
        run, SLO, fit(fit_points(run, 4), Places(4, "rows")), before=full_run(row_s=0.0002)
    )


def test_every_section_is_there_and_filled(full_page: str) -> None:
    page = Page(full_page)
    assert tuple(page.sections) == SECTIONS
    for name in PICTURES:
        assert "svg" in page.sections[name], name
        assert "em" not in page.sections[name], name
    for name in ("rows", "experts", "client"):
        assert "table" in page.sections[name], name
    assert ">3.4%<" in full_page  # what the host took


def test_nothing_comes_from_the_network(full_page: str) -> None:
    page = Page(full_page)
    assert page.addresses
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in full_page
    assert "<script" not in full_page


def test_no_two_elements_share_an_id_and_no_reference_is_lost(full_page: str) -> None:
    page = Page(full_page)
    assert len(set(page.ids)) == len(page.ids)
    assert {address[1:] for address in page.addresses} <= set(page.ids)


def test_pictures_are_well_formed_and_say_what_they_show(full_page: str) -> None:
    pictures = full_page.split("<svg")[1:]
    for picture in pictures:
        ElementTree.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")
    text = Page(full_page).text
    for words in (
        "knee",
        "SLO",
        "p5 to p95",
        "decode",
        "client",
        "server",
        "R² =",
    ):
        assert words in text, words
    assert "TTFT ≤ 30 ms, ITL ≤ 5 ms" in text


def test_the_same_run_gives_the_same_page(full_page: str) -> None:
    run = full_run()
    again = report_html(
        run, SLO, fit(fit_points(run, 4), Places(4, "rows")), before=full_run(row_s=0.0002)
    )
    assert again == full_page


def test_a_run_of_failures_shows_no_empty_section_and_says_why() -> None:
    page = Page(report_html(made_run([[made_record(error="500")]]), Slo()))
    assert not {*page.sections} & PICTURES
    assert {*page.sections} >= {"about", "rows", "client"}
    assert "Not shown: Throughput and latency, as no request was answered; " in page.text


def test_the_verdict_comes_before_all_sections(full_page: str) -> None:
    assert 0 < full_page.index("Meets TTFT") < full_page.index("<section")


@pytest.mark.usefixtures("without_pictures")
def test_a_row_that_was_not_run_does_not_count_as_time() -> None:
    run = made_run([[made_record(due_s=100.0 + i / 10) for i in range(11)]])
    waiting = replace(run.rows[0], start_s=0.0, end_s=0.0, error="was not run")
    page = report_html(replace(run, rows=(*run.rows, waiting)), Slo())
    assert "<td>9.167</td><td>100.0%</td>" in page  # 11 requests in 1.2 s
    assert "verdict" not in page.partition("<body>")[2], "no SLO was asked for"


def test_names_from_outside_are_escaped() -> None:
    run = made_run([[made_record(model="<script>alert(1)</script>")]], name="<b>")
    assert "<script" not in report_html(run, Slo())


@pytest.mark.usefixtures("without_pictures")
def test_no_two_rows_of_the_page_have_the_same_label() -> None:
    short, long = Shape("m", 64, 8), Shape("m", 64, 256)
    loads = [short.at_concurrency(4, 6)] * 3 + [long.at_concurrency(4, 6)]
    loads += [
        replace(short.at_rate(20, 1.0), qps_distribution=spaced)
        for spaced in ("constant", "exponential")
    ]
    page = report_html(made_run([[made_record()] for _ in loads], loads), Slo())
    for label in (
        "m, 64 in, 8 out, 4 users, 1 of 3",
        "m, 64 in, 8 out, 4 users, 3 of 3",
        "m, 64 in, 256 out, 4 users",
        "m, 64 in, 8 out, 20/s",
        "m, 64 in, 8 out, 20/s exponential",
    ):
        assert page.count(f"<td>{label}</td>") == 1, label
