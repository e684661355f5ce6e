"""Latencies, goodput and requests in flight on cases computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.analysis.goodput import Slo, goodput, goodput_by_model
from benchmarking.analysis.in_flight import InFlight, admitted_s, max_decoding
from benchmarking.analysis.latency import (
    E2E,
    ITL,
    TTFT,
    hidden_tokens,
    input_tokens,
    itl_s,
    output_tokens,
)
from benchmarking.records import RequestRecord, ServerUsage
from tests.benchmarking.made_runs import made_record

INTERVALS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.001, 50)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=40,
)


def lasting(sent_s: float, end_s: float) -> RequestRecord:
    return made_record(due_s=sent_s, ttft_s=end_s - sent_s, tokens=1)


def test_latencies_count_from_when_the_request_was_due() -> None:
    record = made_record(due_s=2.0, late_s=0.3, ttft_s=0.2, itl_s=0.01, tokens=11)
    assert TTFT.values([record]) == [pytest.approx(500)]
    assert ITL.values([record]) == [pytest.approx(10)]
    assert E2E.values([record]) == [pytest.approx(600)]


def test_itl_counts_tokens_not_events() -> None:
    record = replace(made_record(tokens=11), chunk_s=(0.1, 0.12, 0.2))
    assert itl_s(record) == pytest.approx(0.01)
    assert itl_s(made_record(tokens=1)) is None


def test_tokens_are_the_servers_else_the_clients_else_events() -> None:
    record = made_record(tokens=4)
    assert (input_tokens(record), output_tokens(record)) == (100, 4)
    record = replace(record, usage=None, prompt_tokens=90, completion_tokens=6)
    assert (input_tokens(record), output_tokens(record)) == (90, 6)
    assert output_tokens(replace(record, completion_tokens=None)) == 4


@pytest.mark.parametrize(
    ("said", "thought", "counted", "came"),
    [
        (30, None, 29, 30),  # two ways to count the same
        (100, 70, 29, 30),  # a hidden thought that is told
        (100, None, 29, 29),  # one that is not
        (100, 70, 98, 100),  # a thought that was sent
        (30, 70, 29, 30),  # one that is not in the server's count
        (100, 100, 3, 3),
        (1, None, 29, 29),  # a count of the last event alone
        (0, None, 29, 29),
        (100, 70, None, 30),  # nobody counts but the server
    ],
)
def test_only_what_came_is_counted(
    said: int, thought: int | None, counted: int | None, came: int
) -> None:
    """29 gaps of 20 ms; divided by all that is counted they would be shorter."""
    chunk_s = tuple(0.1 + 0.02 * number for number in range(30))
    usage = ServerUsage(completion_tokens=said, reasoning_tokens=thought)
    record = replace(made_record(), chunk_s=chunk_s, usage=usage, completion_tokens=counted)
    assert output_tokens(record) == came
    assert hidden_tokens(record) == max(0, said - came)
    assert itl_s(record) == pytest.approx(29 * 0.02 / (came - 1))


def test_a_failure_has_no_latency_and_counts_against_goodput() -> None:
    records = [made_record(ttft_s=0.1), made_record(ttft_s=0.3), made_record(error="500")]
    assert TTFT.values(records) == [pytest.approx(100), pytest.approx(300)]
    found = goodput(records, Slo(ttft_ms=200), duration_s=2.0)
    assert (found.requests_per_s, found.attainment) == pytest.approx((0.5, 1 / 3))
    assert goodput([], Slo(), 1.0).attainment == 0.0


def test_every_bound_of_an_slo_has_to_hold() -> None:
    record = made_record(ttft_s=0.1, itl_s=0.01, tokens=11)
    assert Slo(100.1, 10.1, 200.1).is_met_by(record)
    assert Slo().is_met_by(record)
    for exceeded in (Slo(ttft_ms=99), Slo(itl_ms=9), Slo(e2e_ms=199)):
        assert not exceeded.is_met_by(record)
    assert Slo(itl_ms=1).is_met_by(made_record(tokens=1))
    assert str(Slo(ttft_ms=200, itl_ms=12.5)) == "TTFT ≤ 200 ms, ITL ≤ 12.5 ms"


def test_goodput_of_each_expert() -> None:
    records = [made_record(model="b"), made_record(model="a"), made_record(model="a", error="503")]
    found = goodput_by_model(records, Slo(), duration_s=0.5)
    assert {name: (g.requests_per_s, g.attainment) for name, g in found.items()} == {
        "a": (2.0, 0.5),
        "b": (2.0, 1.0),
    }


def test_in_flight_is_exact() -> None:
    flight = InFlight([lasting(0, 4), lasting(1, 3), made_record(due_s=2, ttft_s=4, error="500")])
    assert flight.at([0, 1, 2, 3, 4, 6]).tolist() == [1, 2, 3, 2, 1, 0]
    assert flight.max() == 3
    assert flight.mean(0, 4) == pytest.approx((4 + 2 + 2) / 4)


@given(INTERVALS)
def test_the_mean_in_flight_is_littles_law_and_the_sum_over_time(
    intervals: list[tuple[float, float]],
) -> None:
    flight = InFlight([lasting(*interval) for interval in intervals])
    last_s = max(end for _, end in intervals)
    assert flight.mean(0, last_s) * last_s == pytest.approx(sum(e - s for s, e in intervals))
    moments_s = np.random.default_rng(0).uniform(0, last_s, 50)
    counted = [sum(s <= moment < e for s, e in intervals) for moment in moments_s]
    assert flight.at(moments_s).tolist() == counted


def test_answers_under_way_are_counted_from_their_first_token_to_their_last_step() -> None:
    times_s = ((0.0, 1.0), (0.5, 2.0), (0.85, 3.0), (0.95, 1.2))  # steps of a tenth of each
    records = [replace(made_record(), chunk_s=(first_s, last_s)) for first_s, last_s in times_s]
    assert max_decoding(records) == 3
    assert max_decoding([*records, made_record(error="500")]) == 3
    assert max_decoding([]) == 0


def test_a_last_token_that_comes_late_does_not_meet_who_took_its_place() -> None:
    times_s = ((0.0, 1.0), (0.91, 2.0))
    records = [
        replace(made_record(tokens=101), chunk_s=(first_s, last_s)) for first_s, last_s in times_s
    ]
    assert max_decoding(records) == 1


def test_places_are_given_first_come_first_served() -> None:
    records = [lasting(0, 4), lasting(1, 6), lasting(2, 8), lasting(7, 9)]
    assert admitted_s(records, places=2) == [0, 1, 4, 7]
    assert admitted_s(records, places=4) == [0, 1, 2, 7]


def test_the_servers_word_counts_more_than_what_is_inferred() -> None:
    told = made_record(due_s=1.0, queue_s=0.25)
    assert admitted_s([lasting(0, 4), told], places=1) == [0, 1.25]


@given(INTERVALS, st.integers(1, 5))
def test_with_a_place_for_everybody_nobody_waits(
    intervals: list[tuple[float, float]], places: int
) -> None:
    records = [lasting(*interval) for interval in intervals]
    waited = admitted_s(records, places)
    sent = sorted(record.sent_s for record in records)
    assert all(start >= due for start, due in zip(waited, sent, strict=True))
    assert admitted_s(records, len(records)) == sent
