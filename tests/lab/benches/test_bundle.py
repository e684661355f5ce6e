"""What `bench-bundle` computes of its measurements, without a server."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.benches.bundle import bench as bundle
from lab.benches.bundle.bench import Results
from lab.benches.bundle.client import Ask, Reply, Span, Switch
from lab.benches.bundle.figures import Spread, load_of, merged, room_bytes, slope_per_100, touches
from lab.benches.bundle.itl import disturbance
from lab.benches.bundle.mix import possible_asks, right
from lab.benches.bundle.servers import experts_of
from lab.benches.bundle.text import ms, table
from lab.kit.servers import ROOT

ASK = Ask("sql", "Hi")


def reply(*chunks_s: float, switch: Switch | None = None, **fields: Any) -> Reply:
    given: dict[str, Any] = {"due_s": 0.0, "sent_s": 0.0, "ended_s": 9.0, "model": "sql"}
    return Reply(ASK, chunks_s=chunks_s, switch=switch, **(given | fields))


@given(slope=st.floats(-5, 5), start=st.floats(-100, 100), count=st.integers(2, 50))
def test_slope_of_a_line_is_its_own(slope: float, start: float, count: int) -> None:
    values = [start + slope * x for x in range(count)]
    assert slope_per_100(values) == pytest.approx(100 * slope, abs=1e-6)


def test_slope_forgets_what_goes_up_and_comes_down_again() -> None:
    assert slope_per_100([5, 9, 5, 5, 9, 5]) == pytest.approx(0)
    with pytest.raises(ValueError, match="two values, not 1"):
        slope_per_100([5])


@pytest.mark.parametrize(
    ("needs", "num", "room"),
    [
        ([10, 10, 10], 1, 19),  # any one, no two
        ([10, 10, 10], 2, 29),
        ([30, 10, 5], 1, 30),  # the smaller ones may be there together
        ([30, 10, 5], 2, 44),
        ([10, 20], 2, 60),
    ],
)
def test_room_is_for_so_many_and_no_more(needs: list[int], num: int, room: int) -> None:
    assert room_bytes(needs, num) == room


@given(
    pairs=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12),
    begin=st.integers(0, 60),
    length=st.integers(1, 5),
)
def test_gap_touches_what_any_of_the_spans_has_in_common_with_it(
    pairs: list[tuple[int, int]], begin: int, length: int
) -> None:
    spans = [Span(at, at + size) for at, size in pairs]
    gap = Span(begin, begin + length)
    common = any(span.begin_s < gap.end_s and gap.begin_s < span.end_s for span in spans)
    assert touches(gap, merged(spans)) == common


def test_overlapping_spans_are_one() -> None:
    assert merged([Span(4, 6), Span(1, 2), Span(5, 9), Span(2, 3)]) == [Span(1, 3), Span(4, 9)]


def test_load_is_where_its_initiator_waited_for_it() -> None:
    switch = Switch(wait_s=1.0, evict_s=0.5, load_s=0.25, is_initiator=True)
    assert reply(3.0, switch=switch, sent_s=2.0).load == Span(3.5, 3.75)
    assert reply(3.0, switch=switch._replace(is_initiator=False)).load is None
    assert reply(3.0).load is None


def test_pieces_that_were_read_together_are_one() -> None:
    assert reply(1.0, 1.0, 1.5, 1.5, 1.75).gaps == [Span(1.0, 1.5), Span(1.5, 1.75)]


def test_goodput_counts_right_answers_in_time() -> None:
    switch = Switch(load_s=0.5)
    replies = [
        reply(0.1, num_tokens=10),
        reply(0.5, num_tokens=10),  # of another text
        reply(3.0, num_tokens=10, switch=switch),  # too late
        reply(error="OSError: gone"),
    ]
    load = load_of("sql", replies, [True, False, True, False], 2.0, max_ttft_s=1.0)
    assert (load.num_requests, load.num_errors, load.num_wrong) == (4, 1, 1)
    assert (load.goodput_per_s, load.tokens_per_s) == (0.5, 15.0)
    assert (load.num_paid, load.max_wait_s) == (1, 3.0)
    assert load.paid == Spread(3.0, 3.0, 3.0, 3.0, 1)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (reply(0.1, text="yes"), True),
        (reply(0.1, text="no"), False),
        (reply(0.1, text="yes", model="sums"), False),
        (reply(text="yes", error="timeout"), False),
    ],
)
def test_answer_is_right_by_its_expert_and_its_text(answer: Reply, is_right: bool) -> None:
    assert right(answer, {ASK: "yes"}) is is_right


def test_newcomers_own_steps_are_no_part_of_their_load() -> None:
    stream = reply(*[0.0, 1.0, 2.0], *[10.0, 10.5, 11.5, 13.5, 14.5])
    switch = Switch(load_s=2.0, is_initiator=True)  # from 10 to 12
    paid = reply(12.5, switch=switch, sent_s=10.0, ended_s=14.0)
    found = disturbance("small", "large", [stream], Span(0.0, 2.0), [paid])
    assert found.without.median_s == 1.0
    assert (found.inside.num, found.inside.max_s) == (2, 1.0)
    assert (found.load.num, found.load.max_s) == (1, 2.0)
    assert found.ratio == pytest.approx(0.995)


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [("x", 1)]) == "| a | b |\n| --- | --- |\n| x | 1 |"
    assert ms(Spread(0.001, 0.25, 0.3, 0.4, 9)) == "1.0 / 250"
    assert ms(None) == "–"


@dataclass(frozen=True)
class Figures:
    spread: Spread
    by_pair: dict[tuple[str, str], list[float]]
    several: Sequence[Span]


def test_failed_part_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "RESULTS", tmp_path / "bench" / "bundle.json")
    figures = Figures(Spread(1, 2, 3, 4, 5), {("a", "b"): [0.5]}, [Span(1, 2)])

    def fail() -> tuple[Any, str]:
        raise OSError("no room")

    results = Results("a machine")
    results.measure("first", fail)
    results.measure("second", lambda: (figures, "a table"))
    assert results.has_failed
    printed = capsys.readouterr().out
    assert "first has failed" in printed
    assert "no room" in printed
    assert "a table" in printed
    kept = json.loads(bundle.RESULTS.read_text())
    assert kept["machine"] == "a machine"
    assert kept["parts"] == {
        "second": {
            "spread": {"median_s": 1, "p95_s": 2, "p99_s": 3, "max_s": 4, "num": 5},
            "by_pair": {"a -> b": [0.5]},
            "several": [{"begin_s": 1, "end_s": 2}],
        }
    }


def test_every_expert_is_asked_the_same() -> None:
    asks = possible_asks(experts_of(ROOT / "models" / "bundle.yaml"))
    by_expert: dict[str, set[tuple[str, float, int]]] = {}
    for ask in asks:
        by_expert.setdefault(ask.expert, set()).add((ask.prompt, ask.temperature, ask.seed))
    assert len(by_expert) == 4
    assert len({frozenset(each) for each in by_expert.values()}) == 1
    assert len(set(asks)) == len(asks)
