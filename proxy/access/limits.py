"""Keeps each team within its policy: requests and tokens per minute, concurrent requests, and
spending per day.

The `limits` library counts: requests in a moving window, tokens in a fixed one. Tokens may be
overdrawn, because an answer's cost is known only at its end; a team is refused from the first
request after its budget is spent. With Redis all proxies share the counts.

Spending is counted by day and team, not by bound, so that after an edit of the budget the day's
spending so far still counts. A day ends at midnight UTC.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, RateLimiter
from limits.util import WindowStats

from proxy.access.concurrency import LocalPlaces, Places, SharedPlaces
from proxy.access.policy import NANOS, TeamPolicy
from proxy.background import Aside
from proxy.errors import Headers, LimitExceeded

log = logging.getLogger(__name__)

DAY_S = 86_400
# A day's count is kept longer, because proxies that share it may have different clocks.
KEPT_S = DAY_S + 3600
REDIS_TIMEOUT_S = 0.5
# For this long after a failure of Redis, counts are kept in memory before it is asked again.
REDIS_RETRY_S = 5.0
MAX_STEP_S = 5.0  # a larger step between the clocks means that the machine's clock was set

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DayBudget:
    """A team's budget of a UTC day, of which `left_s` are left. `bound` is the policy's
    `{unit}_per_day`. A unit is counted as `num_parts` whole parts, under `key`."""

    unit: str
    bound: float
    num_parts: int
    key: str
    left_s: int

    def headers(self, spent: float) -> Headers:
        unit = f"{self.unit.capitalize()}-Day"
        return [
            (f"X-RateLimit-Limit-{unit}", _plain(self.bound)),
            (f"X-RateLimit-Remaining-{unit}", _plain(max(0, self.bound - spent))),
            (f"X-RateLimit-Reset-{unit}", str(self.left_s)),
        ]

    def refusal(self, team_id: str, spent: float) -> str:
        field = f"{self.unit}_per_day"
        return (
            f"Team '{team_id}' has spent {_plain(spent)} of its {field}={_plain(self.bound)}. Try "
            f"again in {self.left_s} s, when the day ends (UTC), or have {field} raised."
        )


def budgets_of(team_id: str, policy: TeamPolicy, now_s: float) -> list[DayBudget]:
    if policy.tokens_per_day is None and policy.cost_per_day is None:
        return []
    day = int(now_s // DAY_S)
    left_s = math.ceil((day + 1) * DAY_S - now_s)
    bounds = [("tokens", policy.tokens_per_day, 1), ("cost", policy.cost_per_day, NANOS)]
    return [
        DayBudget(unit, bound, parts, f"hearth-{unit}-per-day/{day}/{team_id}", left_s)
        for unit, bound, parts in bounds
        if bound is not None
    ]


def _plain(number: float) -> str:
    """Formats an amount without an exponent, however small it is."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of all limits, in memory or in Redis. Any thread."""

    requests: RateLimiter
    tokens: RateLimiter
    days: Storage
    places: Places


class Admission(NamedTuple):
    """Permission to run one request. `headers` tell the client how much of its limits is left."""

    team_id: str
    policy: TeamPolicy
    headers: Headers
    place_id: str | None = None  # None: the team has no limit of concurrent requests
    places: Places | None = None


class TeamLimits:
    """Admits requests and charges tokens. Any thread."""

    def __init__(
        self,
        redis_url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Does not connect yet, because Redis may start later. `wall_clock` decides the day."""
        self._clock, self._wall_clock = clock, wall_clock
        self._offset_s = wall_clock() - clock()
        self._local = _counts(MemoryStorage(), LocalPlaces())
        self._shared: Counts | None = None
        self._shared_places: SharedPlaces | None = None
        self._shared_from_s = 0.0
        self._redis_errors: type[Exception] | tuple[type[Exception], ...] = ()
        if redis_url is not None:
            storage = RedisStorage(
                redis_url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
            )
            # The library names the Redis client's errors, so its module need not be imported here.
            self._redis_errors = storage.base_exceptions
            self._shared_places = SharedPlaces(storage.storage)
            self._shared = _counts(storage, self._shared_places)

    @property
    def may_block(self) -> bool:
        """Whether counts are on another machine, and must not be read in an event loop."""
        return self._shared is not None

    def admit(self, team_id: str, policy: TeamPolicy) -> Admission:
        """Counts a request as running until `leave`. Raises LimitExceeded if it has to wait. Checks
        that count nothing come first, so that a refusal does not use up a request of the minute."""
        headers = self._check_day(team_id, policy)
        if policy.tokens_per_minute is not None:
            headers += self._count(team_id, "tokens", policy.tokens_per_minute, headers)
        admission = self._enter(team_id, policy, headers)
        try:
            if policy.requests_per_minute is not None:
                limit = policy.requests_per_minute
                admission.headers.extend(self._count(team_id, "requests", limit, headers))
        except LimitExceeded:
            self.leave(admission)
            raise
        return admission

    def leave(self, admission: Admission) -> None:
        """Releases the request's place. A lost lease expires by itself."""
        places, place_id = admission.places, admission.place_id
        if places is not None and place_id is not None:
            try:
                places.leave(admission.team_id, place_id)
            except self._redis_errors as error:
                self._redis_failed(error)

    def charge(self, admission: Admission, num_tokens: int, cost_nanos: int = 0) -> None:
        """Counts the tokens and cost of a finished answer, in the minute and day of its end."""
        team_id, policy = admission.team_id, admission.policy
        if policy.tokens_per_minute is not None and num_tokens > 0:
            item = _per_minute(policy.tokens_per_minute, "tokens")
            self._ask(lambda counts: counts.tokens.hit(item, team_id, cost=num_tokens))
        for budget in budgets_of(team_id, policy, self._wall_clock()):
            amount = num_tokens if budget.unit == "tokens" else cost_nanos
            if amount > 0:
                self._spend(budget.key, amount)

    def renew(self) -> None:
        """Renew the places of running requests. Called every HEALTH_INTERVAL."""
        if self._shared_places is not None:
            try:
                self._shared_places.renew()
            except self._redis_errors as error:
                self._redis_failed(error)

    def _enter(self, team_id: str, policy: TeamPolicy, headers: Headers) -> Admission:
        max_places = policy.max_concurrent
        if max_places is None:
            return Admission(team_id, policy, list(headers))
        place_id = secrets.token_hex(8)
        running, places = self._ask(
            lambda counts: (counts.places.enter(team_id, place_id, max_places), counts.places)
        )
        if running is None:
            return Admission(team_id, policy, list(headers), place_id, places)
        raise LimitExceeded(
            f"Team '{team_id}' already has {running} requests running, its limit; "
            "wait for one to end.",
            "concurrency_limit_exceeded",
            [*headers, ("Retry-After", "1"), ("X-RateLimit-Limit-Concurrent", str(max_places))],
        )

    def _check_day(self, team_id: str, policy: TeamPolicy) -> Headers:
        """Returns the headers of the day's budgets. Raises LimitExceeded if one is spent."""
        headers: Headers = []
        for budget in budgets_of(team_id, policy, self._wall_clock()):
            spent = self._spent(budget.key) / budget.num_parts
            headers += budget.headers(spent)
            if spent >= budget.bound:
                raise LimitExceeded(
                    budget.refusal(team_id, spent),
                    "budget_exceeded",
                    [*headers, ("Retry-After", str(budget.left_s))],
                )
        return headers

    def _spent(self, key: str) -> int:
        return self._ask(lambda counts: counts.days.get(key))

    def _spend(self, key: str, amount: int) -> None:
        self._ask(lambda counts: counts.days.incr(key, KEPT_S, amount))

    def _count(self, team_id: str, unit: str, limit: int, earlier: Headers) -> Headers:
        """Counts a request, or only checks that tokens are left. Returns the limit's headers."""
        item = _per_minute(limit, unit)

        def question(counts: Counts) -> tuple[bool, WindowStats]:
            limiter = counts.tokens if unit == "tokens" else counts.requests
            ask = limiter.test if unit == "tokens" else limiter.hit
            return ask(item, team_id), limiter.get_window_stats(item, team_id)

        is_within, stats = self._ask(question)
        wait_s = str(max(1, math.ceil(stats.reset_time - time.time())))
        headers = [
            (f"X-RateLimit-Limit-{unit.capitalize()}", str(limit)),
            (f"X-RateLimit-Remaining-{unit.capitalize()}", str(max(0, stats.remaining))),
            (f"X-RateLimit-Reset-{unit.capitalize()}", wait_s),
        ]
        if is_within:
            return headers
        raise LimitExceeded(
            f"Team '{team_id}' has used its {limit} {unit} per minute. Try again in {wait_s} s.",
            "rate_limit_exceeded",
            [*earlier, *headers, ("Retry-After", wait_s)],
        )

    def _ask(self, question: Callable[[Counts], T]) -> T:
        """Returns Redis's result, or memory's while Redis is down, so that the service goes on."""
        if self._shared is not None and self._clock() >= self._shared_from_s:
            try:
                return question(self._shared)
            except self._redis_errors as error:
                self._redis_failed(error)
        return question(self._in_memory())

    def _in_memory(self) -> Counts:
        """Returns the counts in memory. Minutes begin anew when the machine's clock is set, because
        the library reads it: a team would be refused for as long as the clock was set back."""
        before_s, self._offset_s = self._offset_s, self._wall_clock() - self._clock()
        if abs(self._offset_s - before_s) > MAX_STEP_S:
            fresh = _counts(MemoryStorage(), self._local.places)
            self._local = replace(fresh, days=self._local.days)
        return self._local

    def _redis_failed(self, error: Exception) -> None:
        self._shared_from_s = self._clock() + REDIS_RETRY_S
        log.error("Redis failed, limits are kept in memory meanwhile: %s", error)


@dataclass(frozen=True, slots=True)
class Admissions:
    """Admits requests. Asks in a thread if Redis may block. Event loop only."""

    limits: TeamLimits
    aside: Aside

    async def admit(self, team_id: str, policy: TeamPolicy) -> Admission:
        """Admits a request. Raises LimitExceeded. A client that leaves meanwhile is not counted."""
        if not self.limits.may_block:
            return self.limits.admit(team_id, policy)
        admitting = self.aside.run(self.limits.admit, team_id, policy)
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:
            admitting.add_done_callback(self._leave_again)
            raise

    def leave(self, admission: Admission, num_tokens: int, cost_nanos: int = 0) -> None:
        """Ends a request, and charges its team for the tokens it took."""

        def leave() -> None:
            self.limits.leave(admission)
            self.limits.charge(admission, num_tokens, cost_nanos)

        if self.limits.may_block:
            self.aside.run_later(leave)
        else:
            leave()

    def _leave_again(self, admitting: "asyncio.Future[Admission]") -> None:
        if not admitting.cancelled() and admitting.exception() is None:
            self.leave(admitting.result(), 0)


def _counts(storage: Storage, places: Places) -> Counts:
    # The type stubs allow a moving window only for storages that support it; both of ours do.
    moving = MovingWindowRateLimiter(storage)
    return Counts(moving, FixedWindowRateLimiter(storage), storage, places)


def _per_minute(amount: int, kind: str) -> RateLimitItem:
    return RateLimitItemPerMinute(amount, namespace=f"hearth-{kind}")
