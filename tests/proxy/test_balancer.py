"""The choice between upstreams: affinity, load, ejection; and the file that lists them."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients.inbound import RoutingHints
from proxy.errors import NoSuchModel, UpstreamNotReady, UpstreamUnreachable
from proxy.upstreams.balancer import FIRST_COOLDOWN_S, Balancer, UpstreamHealth
from proxy.upstreams.specs import UpstreamSpec, parse_upstreams


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_balancer(clock: Clock, *specs: UpstreamSpec) -> Balancer:
    return Balancer(specs or [UpstreamSpec(f"http://u{i}:80") for i in range(3)], 1.0, clock)


def serve(balancer: Balancer, key: str | None = None, model: str | None = None) -> str:
    """One request that starts and ends at once."""
    upstream = balancer.choose(RoutingHints(model, key))
    balancer.finish(upstream)
    return upstream.name


def test_key_of_half_a_surrogate_pair_is_a_key(clock: Clock) -> None:
    assert serve(make_balancer(clock), "session:\ud800").startswith("u")


def test_requests_without_affinity_spread_by_load_and_weight(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", weight=3), UpstreamSpec("http://b:1", weight=1)]
    balancer = make_balancer(clock, *specs)
    chosen = Counter(balancer.choose(RoutingHints()).name for _ in range(80))
    assert chosen == {"a:1": 60, "b:1": 20}


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_requests_share_exactly_the_time_in_which_their_upstream_has_any(
    moves: list[tuple[bool, int]],
) -> None:
    clock = Clock()
    balancer = make_balancer(clock, UpstreamSpec("http://a:1", cents_per_hour=40))
    begun: list[float] = []
    shared_s, busy_s = 0.0, 0
    for is_begin, passes_s in [*moves, *[(False, 1)] * len(moves)]:
        clock.now_s += passes_s
        busy_s += passes_s if begun else 0
        if is_begin:
            upstream = balancer.choose(RoutingHints())
            begun.append(upstream.share())
        elif begun:
            shared_s += upstream.share() - begun.pop(0)
            balancer.finish(upstream)
    assert shared_s == pytest.approx(busy_s)


@given(key=st.text(max_size=40))
def test_a_session_always_meets_the_same_upstream(key: str) -> None:
    balancer = make_balancer(Clock())
    assert len({serve(balancer, key) for _ in range(5)}) == 1


@given(keys=st.sets(st.text(min_size=1, max_size=9), min_size=5, max_size=30))
def test_only_the_sessions_of_a_lost_upstream_move(keys: set[str]) -> None:
    balancer = make_balancer(Clock())
    before = {key: serve(balancer, key) for key in keys}
    lost = balancer.upstreams[1]
    balancer.report_health(lost, UpstreamHealth.NOT_READY)
    for key, name in before.items():
        assert (serve(balancer, key) == name) == (name != lost.name)


def test_sessions_spread_in_proportion_to_weight(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", weight=3), UpstreamSpec("http://b:1", weight=1)]
    balancer = make_balancer(clock, *specs)
    chosen = Counter(serve(balancer, f"session:{i}") for i in range(4000))
    assert 0.72 < chosen["a:1"] / 4000 < 0.78


def test_a_hot_session_overflows_to_the_least_loaded(clock: Clock) -> None:
    balancer = make_balancer(clock)
    chosen = Counter(balancer.choose(RoutingHints(None, "hot")).name for _ in range(60))
    assert len(chosen) == 3
    assert max(chosen.values()) <= 1.25 * 20 + 3


def test_a_hot_prompt_has_the_same_second_replica_every_time(clock: Clock) -> None:
    balancer = make_balancer(clock)
    first = balancer.choose(RoutingHints(None, "hot"))
    balancer.report_health(first, UpstreamHealth.NOT_READY)
    second = serve(balancer, "hot")
    balancer.report_health(first, UpstreamHealth.READY)
    chosen = [balancer.choose(RoutingHints(None, "hot")).name for _ in range(6)]
    assert Counter(chosen) == {first.name: 4, second: 2}


def test_requests_with_a_preference_are_counted(clock: Clock) -> None:
    balancer = make_balancer(clock)
    serve(balancer)
    assert balancer.affinity == {}
    for _ in range(60):
        balancer.choose(RoutingHints(None, "hot"))
    counts = balancer.affinity
    assert counts["kept"] == max(upstream.in_flight for upstream in balancer.upstreams)
    assert counts["kept"] + counts["moved"] == 60


def test_replica_without_a_row_has_moved_its_requests(clock: Clock) -> None:
    specs = [UpstreamSpec(f"http://u{i}:80", rows=1) for i in range(2)]
    balancer = make_balancer(clock, *specs)
    for _ in range(4):
        balancer.choose(RoutingHints(None, "hot", takes_row=True))
    assert balancer.affinity == {"kept": 2, "moved": 2}


def test_refused_connection_ejects_until_its_cooldown_is_over(clock: Clock) -> None:
    balancer = make_balancer(clock)
    ejected = balancer.upstreams[0]
    balancer.report_failure(ejected, is_unreachable=True)
    assert ejected.name not in {serve(balancer, str(i)) for i in range(50)}
    clock.now_s += FIRST_COOLDOWN_S
    assert ejected.name in {serve(balancer, str(i)) for i in range(50)}


def test_cooldown_doubles_with_each_ejection_and_success_resets_it(clock: Clock) -> None:
    balancer = make_balancer(clock)
    upstream = balancer.upstreams[0]
    for expected_s in (2, 4, 8, 16, 32, 60, 60):
        balancer.report_failure(upstream, is_unreachable=True)
        assert upstream.ejected_until_s - clock.now_s == expected_s
        clock.now_s = upstream.ejected_until_s
    balancer.report_success(upstream)
    balancer.report_failure(upstream, is_unreachable=True)
    assert upstream.ejected_until_s - clock.now_s == 2


def test_broken_answers_eject_only_when_three_follow_each_other(clock: Clock) -> None:
    balancer = make_balancer(clock)
    upstream = balancer.upstreams[0]
    for _ in range(5):
        balancer.report_failure(upstream)
        balancer.report_failure(upstream)
        balancer.report_success(upstream)
    assert upstream.ejected_until_s == 0
    for _ in range(3):
        balancer.report_failure(upstream)
    assert upstream.ejected_until_s > clock.now_s


def test_streams_that_break_together_eject_once(clock: Clock) -> None:
    balancer = make_balancer(clock)
    upstream = balancer.upstreams[0]
    for is_unreachable in (False,) * 32 + (True,) * 8:
        balancer.report_failure(upstream, is_unreachable=is_unreachable)
    assert upstream.ejected_until_s - clock.now_s == FIRST_COOLDOWN_S


def test_good_health_check_does_not_excuse_broken_answers(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    for _ in range(3):
        balancer.report_failure(balancer.upstreams[0])
    balancer.report_health(balancer.upstreams[0], UpstreamHealth.READY)
    assert not balancer.is_ready()
    clock.now_s += FIRST_COOLDOWN_S
    assert balancer.is_ready()


def test_good_health_check_ends_an_ejection(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    balancer.report_failure(balancer.upstreams[0], is_unreachable=True)
    assert not balancer.is_ready()
    balancer.report_health(balancer.upstreams[0], UpstreamHealth.READY)
    assert balancer.is_ready()


def test_when_all_are_ejected_one_is_tried_all_the_same(clock: Clock) -> None:
    balancer = make_balancer(clock)
    for upstream in balancer.upstreams:
        balancer.report_failure(upstream, is_unreachable=True)
    assert serve(balancer).startswith("u")


def test_none_that_is_not_ready_is_tried(clock: Clock) -> None:
    balancer = make_balancer(clock)
    for upstream in balancer.upstreams:
        balancer.report_health(upstream, UpstreamHealth.NOT_READY)
    with pytest.raises(UpstreamNotReady):
        serve(balancer)
    balancer.report_health(balancer.upstreams[0], UpstreamHealth.READY)
    assert serve(balancer) == balancer.upstreams[0].name


def test_none_that_is_silent_twice_in_a_row_is_tried(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    (only,) = balancer.upstreams
    balancer.report_health(only, UpstreamHealth.SILENT)
    assert serve(balancer) == "only:1", "that may have been a moment's load"
    balancer.report_health(only, UpstreamHealth.SILENT)
    with pytest.raises(UpstreamNotReady):
        serve(balancer)
    balancer.report_health(only, UpstreamHealth.READY)
    assert serve(balancer) == "only:1"


def test_models_restrict_the_choice(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", models=("small",)), UpstreamSpec("http://b:1")]
    balancer = make_balancer(clock, *specs)
    assert {serve(balancer, str(i), "large") for i in range(20)} == {"b:1"}
    only = make_balancer(clock, specs[0])
    with pytest.raises(NoSuchModel):
        only.choose(RoutingHints("large", takes_row=True))
    only.replace([UpstreamSpec("http://b:1", models=("large",))])
    with pytest.raises(UpstreamUnreachable, match="reachable"):
        only.choose(RoutingHints("small", takes_row=True))


def test_what_is_for_no_served_model_goes_to_any_unless_it_takes_a_row(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", models=("a",)), UpstreamSpec("http://b:1", models=("b",))]
    balancer = make_balancer(clock, *specs)
    a, b = balancer.upstreams
    assert {serve(balancer, str(i), None) for i in range(20)} == {a.name, b.name}
    assert {serve(balancer, str(i), "b") for i in range(20)} == {b.name}
    with pytest.raises(UpstreamUnreachable):
        balancer.choose(RoutingHints("b"), {b})
    with pytest.raises(UpstreamUnreachable, match="reachable"):
        balancer.choose(RoutingHints(takes_row=True))


def test_each_list_of_models_has_one_upstream_that_is_usable(clock: Clock) -> None:
    specs = [
        UpstreamSpec(f"http://{name}:1", models=tuple(name[0])) for name in ("a", "b1", "b2", "c")
    ]
    balancer = make_balancer(clock, *specs, UpstreamSpec("http://any:1"))
    a, b1, b2, c, any_model = balancer.upstreams
    assert len(balancer.with_other_models(a)) == 3
    balancer.report_health(b1, UpstreamHealth.NOT_READY)
    balancer.report_health(c, UpstreamHealth.NOT_READY)
    assert balancer.with_other_models(a) == [b2, any_model]


def test_new_list_keeps_the_state_of_those_that_stay(clock: Clock) -> None:
    balancer = make_balancer(clock)
    stays = balancer.choose(RoutingHints(None, "x"))
    balancer.replace([stays.spec, UpstreamSpec("http://new:1")])
    assert balancer.upstreams[0] is stays
    assert balancer.upstreams[0].in_flight == 1


def test_file_with_urls_and_mappings_is_read() -> None:
    text = """
    upstreams:
      - http://a:7000
      - {url: "https://b/base", weight: 2, health_path: /health, models: [x], rows: 8, server: s}
    """
    first, second = parse_upstreams(text)
    assert first == UpstreamSpec("http://a:7000")
    assert second == UpstreamSpec("https://b/base", 2.0, "/health", ("x",), 8, "s")
    upstream = Balancer([second], 1.0).upstreams[0]
    assert (upstream.host, upstream.base_path) == ("b", "/base")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list"),
        ("upstreams:", "expected a list"),
        ("upstreams: [", "no plain YAML"),
        *(
            (f"upstreams: ['{url}']", "is no address; give one like http://")
            for url in (
                "ftp://a",
                "a:1",
                "http://a:99999",
                "http://a:0",
                "http://[::1",
                "http://a b",
            )
        ),
        ("upstreams: ['http://a?b']", "has a query or a fragment; leave it out"),
        ("upstreams: [7]", "[0]: is 7; give an object; known keys: url, weight"),
        ("upstreams: [{weight: 1}]", "[0].url: is missing; give it"),
        ("upstreams: [http://a, http://a]", "twice"),
        ("upstreams: [{url: http://a, weight: 0}]", "[0].weight: is 0; give more than 0"),
        ("upstreams: [{url: http://a, weight: many}]", '[0].weight: is "many"; give a number'),
        (
            "upstreams: [{url: http://a, wieght: 1}]",
            "[0].wieght: is not known (did you mean",
        ),
        (
            "upstreams: [{url: http://a, health_path: x}]",
            '[0].health_path: is "x"; give one that fits',
        ),
        ("upstreams: [{url: http://a, health_path: '/x HTTP/1.1'}]", "[0].health_path: is"),
        ("upstreams: [{url: http://a, models: x}]", '[0].models: is "x"; give a list'),
        (
            "upstreams: [{url: http://a, models: [no]}]",
            "[0].models[0]: is false; give a text",
        ),
        ("upstreams: [{url: http://a, server: 7}]", "[0].server: is 7; give a text in quotes"),
        ("upstreams: [{url: http://a, rows: 0}]", "[0].rows: is 0; give 1 or more"),
        ("upstreams: [{url: http://a, rows: 1.5}]", "[0].rows: is 1.5; give an integer"),
        (
            "upstreams: [{url: http://a, cents_per_hour: -1}]",
            "[0].cents_per_hour: is -1; give 0 or more",
        ),
        ("upstreams: [{url: http://a, cents_per_hour: .nan}]", "[0].cents_per_hour: is NaN"),
    ],
)
def test_faulty_file_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_upstreams(text)


def test_with_no_upstream_listed_there_is_something_to_wait_for() -> None:
    balancer = Balancer(parse_upstreams("upstreams: []"), connect_timeout_s=1.0)
    assert not balancer.is_ready()
    with pytest.raises(UpstreamNotReady):
        balancer.choose(RoutingHints())
