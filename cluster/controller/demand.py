"""Computes the demand on a server from its recent load. Controller thread only.

Demand rises at once. A clear rise is extrapolated by one period, because replicas started now serve
the next period, or by the time that a replica takes to start if that is longer. Waiting requests
are added, to be answered within a period: once a queue is full, arrivals cannot exceed answers.
Demand falls late: it is the highest of the last `scale_down_s`, or of the time of a start if that
is longer, so that no replica is stopped that would be needed before another could be ready.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cluster.controller.loads import Traffic

CLEAR = 2.0  # a rise is clear above this many standard errors of the difference of two counts
# Largest rise to plan for, as a share of the rate: the load doubles in one period.
LARGEST_RISE = 0.5
MAX_AHEAD_S = 1800.0
# Bounds of the optimizer: a replica with impossible counts must not prevent a plan for the others.
MAX_PER_MINUTE, MAX_TOKENS = 1e9, 10**8


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A load in the optimizer's terms."""

    per_minute: float
    in_tokens: int
    out_tokens: int

    @classmethod
    def of(cls, per_minute: float, in_tokens: float, out_tokens: float) -> "OfferedLoad":
        """Returns a load with these means, within the optimizer's bounds."""
        return cls(
            min(per_minute, MAX_PER_MINUTE),
            round(min(in_tokens, MAX_TOKENS)),
            max(round(min(out_tokens, MAX_TOKENS)), 1),
        )

    def as_json(self) -> dict[str, float]:
        return {
            "arrivalRate": self.per_minute,
            "avgInTokens": self.in_tokens,
            "avgOutTokens": self.out_tokens,
        }


@dataclass(frozen=True, slots=True)
class PastLoad:
    """A load and the time at which it was planned for."""

    at_s: float
    load: OfferedLoad


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    traffic: Traffic
    per_minute: float  # includes a rise and waiting requests


class Demand:
    """The demand on one server."""

    def __init__(
        self, expected: OfferedLoad, scale_down_s: float, past: PastLoad | None = None
    ) -> None:
        """`expected` is the load to plan for until one is measured. `past` is the last load that an
        earlier controller measured. It counts like a measurement until it is too old."""
        self.load = expected if past is None else past.load
        self._next_per_minute = self.load.per_minute
        self._scale_down_s = scale_down_s
        self._seen: deque[_Seen] = deque()
        if past is not None:
            self._seen.append(_Seen(past.at_s, Traffic(), past.load.per_minute))
        self._first_s: float | None = None

    @property
    def next(self) -> OfferedLoad:
        """Returns the load expected in the next period: the latest load plus its rise."""
        return replace(self.load, per_minute=min(self._next_per_minute, MAX_PER_MINUTE))

    def see(self, traffic: Traffic, at_s: float, start_s: float = 0.0) -> None:
        """Update the demand. `start_s` is how long a replica takes until it is ready."""
        if self._first_s is None:
            self._first_s = at_s
        ahead_s = min(start_s, MAX_AHEAD_S)
        before = self._seen[-1].traffic if self._seen else Traffic()
        parts = [(each.at_s, each.traffic) for each in self._seen] + [(at_s, traffic)]
        early = _joined(part for ended_s, part in parts if 0 <= at_s - ahead_s - ended_s < ahead_s)
        late = _joined(part for ended_s, part in parts if ended_s > at_s - ahead_s)
        next_rise = _rise(before, traffic)
        rise = max(next_rise, _rise(early, late))
        backlog = 60 * traffic.waiting / traffic.seconds if traffic.seconds else 0.0
        self._next_per_minute = traffic.per_minute + next_rise
        self._seen.append(_Seen(at_s, traffic, traffic.per_minute + rise + backlog))
        while self._seen[0].at_s < at_s - max(self._scale_down_s, 2 * ahead_s):
            self._seen.popleft()
        late_s = max(self._scale_down_s, ahead_s)
        recent = [each for each in self._seen if each.at_s >= at_s - late_s]
        highest = max(each.per_minute for each in recent)
        self.load = OfferedLoad.of(highest, *self._tokens(each.traffic for each in recent))

    def rest(self) -> None:
        """Forget the load, because no more requests come."""
        self._seen.clear()
        self._next_per_minute = 0.0
        self.load = replace(self.load, per_minute=0.0)

    def is_known(self, at_s: float) -> bool:
        """Returns whether the load has been observed for `scale_down_s`, so that it may fall."""
        return self._first_s is not None and at_s - self._first_s >= self._scale_down_s

    def _tokens(self, recent: Iterable[Traffic]) -> tuple[float, float]:
        """Returns mean tokens over the whole window, so that a few requests do not move a plan."""
        together = sum(recent, Traffic())
        if together.ended < 1:
            return self.load.in_tokens, self.load.out_tokens
        return together.mean_tokens


def _joined(parts: Iterable[Traffic]) -> Traffic:
    """Returns the combined traffic of consecutive periods."""
    found = list(parts)
    seconds = math.fsum(each.seconds for each in found)
    return Traffic(seconds, math.fsum(each.arrived for each in found))


def _rise(before: Traffic, now: Traffic) -> float:
    """Returns the requests per minute that such a rise adds once more; 0 if it may be chance."""
    if not before.seconds or not now.seconds:
        return 0.0
    ratio = now.seconds / before.seconds
    expected = before.arrived * ratio
    rise = now.arrived - expected
    if rise <= CLEAR * math.sqrt(now.arrived + expected * ratio):
        return 0.0
    return min(60 * rise / now.seconds, LARGEST_RISE * now.per_minute)
