"""Limits per team, counted in memory and in Redis, and the file that says them."""

import time
from collections.abc import Callable

import pytest

from proxy.access.limits import DAY_S, TeamLimits
from proxy.access.policy import Policy, TeamPolicy, parse_policy
from proxy.errors import LimitExceeded
from tests.ports import free_port
from tests.proxy.support import DEADLINE_S, until

ONE = "{prompt_per_million: 1, completion_per_million: 2}"


@pytest.fixture(autouse=True)
def _patience_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may be late: the counts would go to memory meanwhile."""
    monkeypatch.setattr("proxy.access.limits.REDIS_TIMEOUT_S", DEADLINE_S)


@pytest.fixture(params=["memory", "redis"])
def limits(request: pytest.FixtureRequest) -> TeamLimits:
    if request.param == "memory":
        return TeamLimits()
    return TeamLimits(request.getfixturevalue("redis_url"))


def header(error: LimitExceeded, name: str) -> str:
    return dict(error.headers)[name]


def test_requests_per_minute(limits: TeamLimits, request: pytest.FixtureRequest) -> None:
    team, policy = request.node.name, TeamPolicy(requests_per_minute=3)
    remaining = []
    for _ in range(3):
        headers = dict(limits.admit(team, policy).headers)
        remaining.append(headers["X-RateLimit-Remaining-Requests"])
    assert remaining == ["2", "1", "0"]
    with pytest.raises(LimitExceeded) as caught:
        limits.admit(team, policy)
    assert 1 <= int(header(caught.value, "Retry-After")) <= 60
    assert header(caught.value, "X-RateLimit-Limit-Requests") == "3"
    limits.admit(team + "-other", policy)


def test_tokens_per_minute_may_be_overdrawn_once(
    limits: TeamLimits, request: pytest.FixtureRequest
) -> None:
    team, policy = request.node.name, TeamPolicy(tokens_per_minute=100)
    admission = limits.admit(team, policy)
    limits.charge(admission, 40)
    admission = limits.admit(team, policy)
    assert ("X-RateLimit-Remaining-Tokens", "60") in admission.headers
    limits.charge(admission, 500)
    with pytest.raises(LimitExceeded, match="100 tokens per minute"):
        limits.admit(team, policy)


class WallClock:
    """A day's end is not waited for. It begins today, as Redis forgets keys by its own clock."""

    def __init__(self) -> None:
        self.now_s = (time.time() // DAY_S) * DAY_S + DAY_S / 2

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture(params=["memory", "redis"])
def make_limits(request: pytest.FixtureRequest, wall_clock: WallClock) -> Callable[[], TeamLimits]:
    url = None if request.param == "memory" else request.getfixturevalue("redis_url")
    return lambda: TeamLimits(url, wall_clock=wall_clock)


def refusal(limits: TeamLimits, team: str, policy: TeamPolicy) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        limits.admit(team, policy)
    return caught.value


def test_budget_of_a_day_is_refused_until_midnight(
    make_limits: Callable[[], TeamLimits], wall_clock: WallClock, request: pytest.FixtureRequest
) -> None:
    team, policy, limits = request.node.name, TeamPolicy(tokens_per_day=100), make_limits()
    admission = limits.admit(team, policy)
    assert ("X-RateLimit-Remaining-Tokens-Day", "100") in admission.headers
    limits.charge(admission, 40)
    assert ("X-RateLimit-Remaining-Tokens-Day", "60") in limits.admit(team, policy).headers
    limits.charge(admission, 500)
    error = refusal(limits, team, policy)
    assert (error.status, error.code) == (429, "budget_exceeded")
    assert "spent 540 of its tokens_per_day=100" in str(error)
    assert header(error, "Retry-After") == "43200"
    assert header(error, "X-RateLimit-Remaining-Tokens-Day") == "0"
    limits.admit(team + "-other", policy)
    wall_clock.now_s += 43199.5
    assert header(refusal(limits, team, policy), "Retry-After") == "1"
    wall_clock.now_s += 1
    assert ("X-RateLimit-Remaining-Tokens-Day", "100") in limits.admit(team, policy).headers


def test_answer_is_booked_on_the_day_in_which_it_ends(
    make_limits: Callable[[], TeamLimits], wall_clock: WallClock, request: pytest.FixtureRequest
) -> None:
    team, policy, limits = request.node.name, TeamPolicy(tokens_per_day=10), make_limits()
    limits.charge(limits.admit(team, policy), 9)
    over_midnight = limits.admit(team, policy)
    wall_clock.now_s += DAY_S / 2
    limits.charge(over_midnight, 9)
    assert ("X-RateLimit-Remaining-Tokens-Day", "1") in limits.admit(team, policy).headers


def test_edited_budget_knows_what_is_spent(
    make_limits: Callable[[], TeamLimits], request: pytest.FixtureRequest
) -> None:
    team, limits = request.node.name, make_limits()
    limits.charge(limits.admit(team, TeamPolicy(tokens_per_day=10)), 10)
    refusal(limits, team, TeamPolicy(tokens_per_day=10))
    raised = limits.admit(team, TeamPolicy(tokens_per_day=15))
    assert ("X-RateLimit-Remaining-Tokens-Day", "5") in raised.headers


def test_budget_of_cost_is_counted_to_the_billionth(
    make_limits: Callable[[], TeamLimits], request: pytest.FixtureRequest
) -> None:
    team, limits = request.node.name, make_limits()
    policy = TeamPolicy(cost_per_day=0.001, tokens_per_day=100)
    admission = limits.admit(team, policy)
    limits.charge(admission, 1, 1)
    headers = dict(limits.admit(team, policy).headers)
    assert headers["X-RateLimit-Limit-Cost-Day"] == "0.001"
    assert headers["X-RateLimit-Remaining-Cost-Day"] == "0.000999999"
    assert headers["X-RateLimit-Remaining-Tokens-Day"] == "99"
    limits.charge(admission, 1, 2_000_000)
    error = refusal(limits, team, policy)
    assert "spent 0.002000001 of its cost_per_day=0.001." in str(error)
    assert header(error, "X-RateLimit-Remaining-Tokens-Day") == "98"


def test_restarted_proxy_knows_what_the_day_has_cost_by_redis(
    redis_url: str, wall_clock: WallClock
) -> None:
    policy = TeamPolicy(tokens_per_day=10)
    before, after = (TeamLimits(redis_url, wall_clock=wall_clock) for _ in range(2))
    before.charge(before.admit("restarted", policy), 10)
    error = refusal(after, "restarted", policy)
    assert header(error, "X-RateLimit-Remaining-Tokens-Day") == "0"


def test_refused_by_its_day_a_request_uses_up_no_minute(
    make_limits: Callable[[], TeamLimits], request: pytest.FixtureRequest
) -> None:
    team, limits = request.node.name, make_limits()
    policy = TeamPolicy(tokens_per_day=1, requests_per_minute=2, max_concurrent=1)
    admission = limits.admit(team, policy)
    limits.charge(admission, 1)
    limits.leave(admission)
    for _ in range(3):
        refusal(limits, team, policy)
    admission = limits.admit(team, TeamPolicy(requests_per_minute=2, max_concurrent=1))
    assert ("X-RateLimit-Remaining-Requests", "0") in admission.headers


def test_requests_at_a_time(limits: TeamLimits, request: pytest.FixtureRequest) -> None:
    team, policy = request.node.name, TeamPolicy(max_concurrent=2, requests_per_minute=3)
    admission = limits.admit(team, policy)
    limits.admit(team, policy)
    for _ in range(5):  # the refused ones must not use up requests per minute
        with pytest.raises(LimitExceeded, match="2 requests running"):
            limits.admit(team, policy)
    limits.leave(admission)
    limits.admit(team, policy)


@pytest.mark.parametrize(
    ("model", "cost_nanos"),
    [("m", 1_000 + 20_000), ("other", 3_000), (None, 3_000), ("", 3_000), ("*", 3_000)],
)
def test_price_is_the_models_or_that_of_any(model: str | None, cost_nanos: int) -> None:
    any_model = "{prompt_per_million: 3, completion_per_million: 0}"
    price = parse_policy(f"prices: {{m: {ONE}, '*': {any_model}}}").price_of(model)
    assert price is not None
    assert price.cost_nanos(1, 10) == cost_nanos


def test_model_without_a_price_has_none() -> None:
    assert parse_policy(f"prices: {{m: {ONE}}}").price_of("other") is None


def test_two_proxies_share_minutes_through_redis(redis_url: str) -> None:
    one, other = TeamLimits(redis_url), TeamLimits(redis_url)
    policy = TeamPolicy(requests_per_minute=2)
    one.admit("shared", policy)
    other.admit("shared", policy)
    with pytest.raises(LimitExceeded):
        one.admit("shared", policy)


def can_enter(limits: TeamLimits, team: str, policy: TeamPolicy) -> bool:
    try:
        limits.leave(limits.admit(team, policy))
    except LimitExceeded:
        return False
    return True


def test_two_proxies_share_places_through_redis(redis_url: str) -> None:
    one, other = TeamLimits(redis_url), TeamLimits(redis_url)
    policy = TeamPolicy(max_concurrent=1)
    admission = one.admit("places", policy)
    assert not can_enter(other, "places", policy)
    one.leave(admission)
    assert can_enter(other, "places", policy)


def test_places_of_a_proxy_that_died_come_free_and_renewed_ones_do_not(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = TeamPolicy(max_concurrent=1)
    dead, alive, other = (TeamLimits(redis_url) for _ in range(3))
    monkeypatch.setattr("proxy.access.concurrency.LEASE_MS", 1000)
    alive.admit("alive", policy)
    with monkeypatch.context() as longer:
        longer.setattr("proxy.access.concurrency.LEASE_MS", 60_000)
        alive.renew()
    dead.admit("dead", policy)  # ends after the lease of the living would have ended
    until(lambda: can_enter(other, "dead", policy), "the end of a lease that nobody renews")
    assert not can_enter(other, "alive", policy)


def test_memory_takes_over_while_redis_is_away() -> None:
    limits = TeamLimits(f"redis://127.0.0.1:{free_port()}/0")
    policy = TeamPolicy(requests_per_minute=1, max_concurrent=5)
    limits.renew()
    limits.leave(limits.admit("team", policy))
    with pytest.raises(LimitExceeded):
        limits.admit("team", policy)


@pytest.mark.parametrize("step_s", [-86_400.0, -3600.0, 3600.0])
def test_setting_the_clock_shuts_no_team_out(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    set_s, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + set_s[0])
    limits = TeamLimits(wall_clock=lambda: time.time())
    policy = TeamPolicy(requests_per_minute=1, tokens_per_minute=9, tokens_per_day=10**6)
    admission = limits.admit("team", policy)
    limits.charge(admission, 10)
    with pytest.raises(LimitExceeded):
        limits.admit("team", policy)
    set_s[0] = step_s
    limits.admit("team", policy)
    with pytest.raises(LimitExceeded):
        limits.admit("team", policy)


def test_team_entries_replace_defaults_key_by_key() -> None:
    policy = parse_policy(
        "defaults: {requests_per_minute: 10, max_concurrent: 2}\n"
        "teams: {a: {max_concurrent: null, models: [m]}, b: }\n"
    )
    a = TeamPolicy(requests_per_minute=10, max_concurrent=None, models=frozenset({"m"}))
    assert policy.for_team("a") == a
    assert policy.for_team("b") == policy.for_team("unknown") == policy.defaults
    assert parse_policy("") == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "no plain YAML"),
        ("[]\n- x", "no plain YAML"),
        ("- x", "mapping"),
        ("teams: [a]", "must be mappings"),
        ("team: {}", "team: is not known .did you mean teams"),
        (
            "teams: {a: {rpm: 1}}",
            "teams.a.rpm: is not known; leave it out",
        ),
        ("teams: {a: 7}", "teams.a"),
        ("defaults: {max_concurrent: 0}", "defaults.max_concurrent: is 0; give 1 or more"),
        ("defaults: {tokens_per_day: 0}", "defaults.tokens_per_day: is 0; give 1 or more"),
        *(
            (f"defaults: {{{name}: 1{'0' * 16}}}", f"defaults.{name}: is 1.*; give 1.* or less")
            for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent")
        ),
        (
            "defaults: {tokens_per_day: 1.0e+16}",
            "tokens_per_day: is 1.*; give 10{15} or less",
        ),
        ("teams: {a: {cost_per_day: 1}}", r"cost_per_day needs prices\['\*'\]"),
        (f"prices: {{m: {ONE}}}\ndefaults: {{cost_per_day: 1}}", "cost_per_day needs"),
        (
            "defaults: {cost_per_day: .inf}",
            "defaults.cost_per_day: is Infinity; give 10{9} or",
        ),
        (
            "prices: {m: {prompt_per_million: 1}}",
            "completion_per_million: is missing; give",
        ),
        ("prices: {m: " + ONE.replace("2", "-2") + "}", "is -2; give 0 or more"),
        ("prices: {m: " + ONE.replace("2", ".nan") + "}", "prices.m"),
        ("prices: {m: " + ONE.replace("2", "20000") + "}", "is 20000; give 10000 or less"),
        ("currency: dollars", "currency: is .dollars.; give one that fits"),
    ],
)
def test_faulty_policy_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_policy(text)
