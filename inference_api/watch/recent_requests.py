"""Figures of the last requests to models, for the dashboard; no texts.

A request counts once its body was accepted. A request for several answers has one entry for each.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

from inference_api.core.record import GenerationRecord, Observer
from inference_api.errors import HearthError
from inference_api.request import Caller

MAX_REQUESTS = 100
MAX_TEAM = 128  # characters
OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRequest:
    """A request. `ended_at` is in seconds since 1970. `itl_ms` is a mean. `total_ms` is from the
    request's arrival to its last token. `status` is that of the answer or of the error that ended
    it, whose code is `error`. Figures that do not apply are null: a refused request has none."""

    ended_at: float
    request_id: str
    team_id: str | None
    route: str
    model: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    total_ms: float | None = None
    finish_reason: str | None = None
    status: int
    error: str | None
    ignored: tuple[str, ...] = ()  # fields of the body that were ignored


class RecentRequests(Observer):
    """The last MAX_REQUESTS requests, each of bounded size. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()  # a deque must not change while it is read
        self._requests: deque[RecentRequest] = deque(maxlen=MAX_REQUESTS)

    def ended(self, record: GenerationRecord) -> None:
        has_tokens = record.completion_tokens > 0
        request = replace(
            self._request(record.caller, record.model, record.error),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.reused_tokens,
            completion_tokens=record.completion_tokens,
            queue_ms=_ms(record.queue_s),
            ttft_ms=_ms(record.ttft_s) if has_tokens else None,
            itl_ms=_ms(1 / record.tokens_per_s) if record.tokens_per_s else None,
            total_ms=_ms(record.e2e_s) if has_tokens else None,
            finish_reason=record.finish_reason,
        )
        self._add(request)

    def refused(self, caller: Caller, model: str, error: HearthError) -> None:
        self._add(self._request(caller, model, error))

    def newest_first(self) -> list[RecentRequest]:
        with self._lock:
            return [*reversed(self._requests)]

    def _request(self, caller: Caller, model: str, error: HearthError | None) -> RecentRequest:
        return RecentRequest(
            ended_at=round(self._clock(), 3),
            request_id=caller.request_id,
            team_id=None if caller.team_id is None else caller.team_id[:MAX_TEAM],
            route=caller.route,
            model=model,
            status=OK if error is None else error.status,
            error=None if error is None else error.code,
            ignored=caller.left_aside,
        )

    def _add(self, request: RecentRequest) -> None:
        with self._lock:
            self._requests.append(request)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
