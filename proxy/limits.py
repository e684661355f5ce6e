"""Keeps each team within its policy: requests and tokens per minute, requests at a time.

Counting is the `limits` library's: a moving window for requests; for tokens a fixed one, as it
may be overdrawn (what an answer costs is known when it has ended, so a team is refused from the
first request after its budget is spent). With Redis the minutes are shared by all proxies, else
they are this process's own. Requests at a time are always counted per process.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, Storage, storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, RateLimiter

from proxy.errors import Headers, LimitExceeded
from proxy.policy import TeamPolicy

log = logging.getLogger(__name__)

REDIS_TIMEOUT_S = 0.5
# After a failure of Redis its counts are kept in memory this long before it is asked again.
REDIS_RETRY_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admission:
    """Leave to run one request. `headers` tell the client what is left of its limits."""

    team_id: str
    policy: TeamPolicy
    headers: Headers


class Counters:
    """The two windows over one storage. Any thread."""

    def __init__(self, storage: Storage) -> None:
        self.requests: RateLimiter = MovingWindowRateLimiter(storage)
        self.tokens: RateLimiter = FixedWindowRateLimiter(storage)


class TeamLimits:
    """Admits requests and charges tokens. Any thread."""

    def __init__(
        self, redis_url: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Does not connect yet: Redis may come up after us."""
        self._clock = clock
        self._local = Counters(MemoryStorage())
        self._shared: Counters | None = None
        if redis_url is not None:
            storage = storage_from_string(
                redis_url,
                wrap_exceptions=True,
                socket_timeout=REDIS_TIMEOUT_S,
                socket_connect_timeout=REDIS_TIMEOUT_S,
            )
            assert isinstance(storage, Storage)  # not one of the library's asynchronous ones
            self._shared = Counters(storage)
        self._shared_from_s = 0.0
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()

    def admit(self, team_id: str, policy: TeamPolicy) -> Admission:
        """Count a request in, to be counted out with `leave`. LimitExceeded if it has to wait.

        The limits that cost nothing to ask come first, so that a refused request uses up none.
        """
        headers: Headers = []
        if policy.tokens_per_minute is not None:
            headers += self._check_tokens(team_id, policy.tokens_per_minute)
        self._enter(team_id, policy.max_concurrent, headers)
        try:
            if policy.requests_per_minute is not None:
                headers += self._count_request(team_id, policy.requests_per_minute, headers)
        except LimitExceeded:
            self.leave(team_id)
            raise
        return Admission(team_id, policy, headers)

    def leave(self, team_id: str) -> None:
        with self._lock:
            self._running[team_id] -= 1
            if self._running[team_id] <= 0:
                del self._running[team_id]

    def charge(self, admission: Admission, num_tokens: int) -> None:
        """Book the tokens of a finished answer."""
        if admission.policy.tokens_per_minute is None or num_tokens <= 0:
            return
        item = _per_minute(admission.policy.tokens_per_minute, "tokens")
        self._ask(lambda counters: counters.tokens.hit(item, admission.team_id, cost=num_tokens))

    def _enter(self, team_id: str, max_concurrent: int | None, headers: Headers) -> None:
        with self._lock:
            running = self._running[team_id]
            if max_concurrent is None or running < max_concurrent:
                self._running[team_id] = running + 1
                return
        raise LimitExceeded(
            f"Team '{team_id}' already has {running} requests running, its limit; "
            "wait for one to end.",
            "concurrency_limit_exceeded",
            [*headers, ("Retry-After", "1"), ("X-RateLimit-Limit-Concurrent", str(max_concurrent))],
        )

    def _check_tokens(self, team_id: str, limit: int) -> Headers:
        item = _per_minute(limit, "tokens")
        is_left = self._ask(lambda counters: counters.tokens.test(item, team_id))
        headers, wait_s = self._window(item, team_id, "Tokens")
        if is_left:
            return headers
        raise _exceeded(
            f"Team '{team_id}' has used its {limit} tokens per minute.", headers, wait_s
        )

    def _count_request(self, team_id: str, limit: int, others: Headers) -> Headers:
        item = _per_minute(limit, "requests")
        is_counted = self._ask(lambda counters: counters.requests.hit(item, team_id))
        headers, wait_s = self._window(item, team_id, "Requests")
        if is_counted:
            return headers
        raise _exceeded(
            f"Team '{team_id}' has used its {limit} requests per minute.", others + headers, wait_s
        )

    def _window(self, item: RateLimitItem, team_id: str, unit: str) -> tuple[Headers, int]:
        """The X-RateLimit headers of one limit, and the seconds until its window moves on."""
        stats = self._ask(
            lambda counters: (
                counters.requests if unit == "Requests" else counters.tokens
            ).get_window_stats(item, team_id)
        )
        wait_s = max(1, math.ceil(stats.reset_time - time.time()))
        headers = [
            (f"X-RateLimit-Limit-{unit}", str(item.amount)),
            (f"X-RateLimit-Remaining-{unit}", str(max(0, stats.remaining))),
            (f"X-RateLimit-Reset-{unit}", str(wait_s)),
        ]
        return headers, wait_s

    def _ask(self, question: Callable[[Counters], T]) -> T:
        """Redis's answer, or memory's while Redis is away: limits must not stop the service."""
        if self._shared is not None and self._clock() >= self._shared_from_s:
            try:
                return question(self._shared)
            except StorageError as error:
                self._shared_from_s = self._clock() + REDIS_RETRY_S
                log.error("Redis failed, limits are kept in memory meanwhile: %s", error)
        return question(self._local)


def _per_minute(amount: int, kind: str) -> RateLimitItem:
    return RateLimitItemPerMinute(amount, namespace=f"hearth-{kind}")


def _exceeded(message: str, headers: Headers, wait_s: int) -> LimitExceeded:
    return LimitExceeded(
        f"{message} Try again in {wait_s} s.",
        "rate_limit_exceeded",
        [*headers, ("Retry-After", str(wait_s))],
    )
