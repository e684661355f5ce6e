"""What upstreams say of their user rows, and what becomes of it in the choice."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.clients.inbound import RoutingHints
from proxy.errors import AllRowsBusy
from proxy.upstreams.balancer import Balancer, UpstreamHealth, UpstreamRows
from proxy.upstreams.forward import MAX_SAVED_RETRIES, RetryBudget
from proxy.upstreams.health import parse_rows
from proxy.upstreams.specs import UpstreamSpec


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def balancer_of(*rows: UpstreamRows | None, **options: float) -> tuple[Balancer, Clock]:
    clock = Clock()
    specs = [UpstreamSpec(f"http://u{number}:1") for number in range(len(rows))]
    balancer = Balancer(specs, 1.0, clock, **options)  # type: ignore[arg-type]
    for upstream, each in zip(balancer.upstreams, rows, strict=True):
        balancer.report_health(upstream, UpstreamHealth.READY, each)
    return balancer, clock


def fill(balancer: Balancer) -> list[str]:
    """The upstreams of as many generating requests as find a row."""
    names = []
    while True:
        try:
            names.append(balancer.choose(RoutingHints(takes_row=True)).name)
        except AllRowsBusy:
            return names


@pytest.mark.parametrize(
    ("answer", "rows"),
    [
        (b'{"user_rows": 32, "busy_rows": 3, "queued": 2, "more": "x"}', UpstreamRows(32, 5)),
        (b'{"user_rows": 1, "busy_rows": 0, "queued": 0}', UpstreamRows(1, 0)),
        (b'{"user_rows": 0, "busy_rows": 0, "queued": 0}', None),
        (b'{"user_rows": true, "busy_rows": 0, "queued": 0}', None),
        (b'{"user_rows": 4, "busy_rows": -1, "queued": 0}', None),
        (b'{"user_rows": 4, "busy_rows": 1.5, "queued": 0}', None),
        (b'{"user_rows": "4", "busy_rows": 0, "queued": 0}', None),
        (b'{"user_rows": 4, "busy_rows": 0}', None),
        (b'{"user_rows": 4, "busy_rows": false, "queued": 0}', None),
        (b"[1, 2]", None),
        (b'"ready"', None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
    ],
)
def test_rows_are_read_where_they_are_said_in_full(
    answer: bytes, rows: UpstreamRows | None
) -> None:
    assert parse_rows(answer) == rows


@given(*[st.integers(-1, 10**400) | st.integers(0, 100)] * 3)
@example(10**400, 0, 0)
@example(8, 10**400, 10**400)
def test_no_number_that_a_server_says_breaks_the_choice(num: int, busy: int, queued: int) -> None:
    """Not for itself, and not for the other server."""
    answer = json.dumps({"user_rows": num, "busy_rows": busy, "queued": queued}).encode()
    balancer, _ = balancer_of(parse_rows(answer), UpstreamRows(8, 0))
    for key in (None, "a", "b"):
        balancer.choose(RoutingHints(affinity_key=key, takes_row=True))


def test_requests_go_where_the_smallest_share_of_rows_is_busy() -> None:
    balancer, _ = balancer_of(UpstreamRows(32, 0), UpstreamRows(8, 0))
    names = [balancer.choose(RoutingHints(takes_row=True)).name for _ in range(40)]
    assert names.count("u0:1") == 32


def test_each_gets_its_rows_and_one_more_for_each_eight() -> None:
    balancer, _ = balancer_of(UpstreamRows(16, 0), UpstreamRows(2, 0))
    names = fill(balancer)
    assert (names.count("u0:1"), names.count("u1:1")) == (18, 3)
    balancer.finish(balancer.upstreams[1])
    assert fill(balancer) == ["u1:1"]


def test_rows_that_others_have_taken_count_and_ones_own_do_not_twice() -> None:
    balancer, _ = balancer_of(UpstreamRows(4, 3))
    assert len(fill(balancer)) == 2
    (upstream,) = balancer.upstreams
    balancer.report_health(upstream, UpstreamHealth.READY, UpstreamRows(4, 2))
    assert upstream.num_taken_by_others == 0
    assert len(fill(balancer)) == 3


def test_what_takes_no_row_waits_for_none() -> None:
    balancer, _ = balancer_of(UpstreamRows(1, 9))
    assert fill(balancer) == []
    assert balancer.choose(RoutingHints()).name == "u0:1"


def test_one_that_does_not_say_takes_all_up_to_its_bound() -> None:
    balancer, _ = balancer_of(None, max_in_flight=7)
    assert len(fill(balancer)) == 7
    with pytest.raises(AllRowsBusy):
        balancer.choose(RoutingHints())


def test_one_that_does_not_say_has_the_rows_of_the_list() -> None:
    balancer = Balancer([UpstreamSpec("http://u:1", rows=2)], 1.0)
    (upstream,) = balancer.upstreams
    for _ in range(2):
        balancer.report_health(upstream, UpstreamHealth.READY, None)
    for _ in range(3):
        balancer.choose(RoutingHints(takes_row=True))
    with pytest.raises(AllRowsBusy):
        balancer.choose(RoutingHints(takes_row=True))
    balancer.report_health(upstream, UpstreamHealth.READY, UpstreamRows(8, 3))
    assert balancer.choose(RoutingHints(takes_row=True)) is upstream, "it knows better"


def test_full_one_is_left_until_a_row_comes_free() -> None:
    balancer, _ = balancer_of(UpstreamRows(4, 0))
    (upstream,) = balancer.upstreams
    for _ in range(2):
        balancer.choose(RoutingHints(takes_row=True))
    assert balancer.report_full(upstream)
    balancer.finish(upstream, had_row=False)
    assert fill(balancer) == []
    balancer.finish(upstream)
    assert len(fill(balancer)) == 5
    balancer.report_full(upstream)
    balancer.report_health(upstream, UpstreamHealth.READY, UpstreamRows(4, 0))
    balancer.finish(upstream)
    assert fill(balancer) == ["u0:1"]


def test_one_that_says_nothing_of_rows_is_not_waited_for() -> None:
    balancer, _ = balancer_of(None)
    assert not balancer.report_full(balancer.upstreams[0])


def test_one_whose_streams_all_stall_gets_no_more_until_one_goes_on() -> None:
    balancer, clock = balancer_of(None, None, stall_timeout_s=60)
    stalled, other = balancer.upstreams
    stalled.begin_stream()
    clock.now_s += 59
    stalled.begin_stream()
    clock.now_s += 60.5
    assert {balancer.choose(RoutingHints()) for _ in range(4)} == {other}
    stalled.note_piece()
    assert balancer.choose(RoutingHints()) is stalled
    clock.now_s += 61
    assert not balancer.is_usable(stalled)
    stalled.end_stream()
    stalled.end_stream()
    assert balancer.is_usable(stalled)


def test_a_fifth_of_all_requests_may_be_retried() -> None:
    budget = RetryBudget()
    assert sum(budget.try_spend() for _ in range(1000)) == MAX_SAVED_RETRIES
    for _ in range(50):
        budget.note_request()
    assert 9 <= sum(budget.try_spend() for _ in range(1000)) <= 10
