"""Limits per team, counted in memory and in Redis, and the file that says them."""

import pytest

from proxy.access.limits import TeamLimits
from proxy.access.policy import Policy, TeamPolicy, parse_policy
from proxy.errors import LimitExceeded
from tests.ports import free_port
from tests.proxy.support import DEADLINE_S, until


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


def test_requests_at_a_time(limits: TeamLimits, request: pytest.FixtureRequest) -> None:
    team, policy = request.node.name, TeamPolicy(max_concurrent=2, requests_per_minute=3)
    admission = limits.admit(team, policy)
    limits.admit(team, policy)
    for _ in range(5):  # the refused ones must not use up requests per minute
        with pytest.raises(LimitExceeded, match="2 requests running"):
            limits.admit(team, policy)
    limits.leave(admission)
    limits.admit(team, policy)


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
        ("[", "not YAML"),
        ("[]\n- x", "not YAML"),
        ("- x", "mapping"),
        ("teams: [a]", "must be mappings"),
        ("team: {}", "team: Extra inputs"),
        ("teams: {a: {rpm: 1}}", "teams.a.rpm: Extra inputs"),
        ("teams: {a: 7}", "teams.a"),
        ("defaults: {max_concurrent: 0}", "greater than or equal to 1"),
    ],
)
def test_faulty_policy_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_policy(text)
