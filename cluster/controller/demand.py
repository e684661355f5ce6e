"""The demand on a server, from its recent load. Controller thread only.

Demand rises at once. A clear rise is extrapolated by one more period, because what is started now
serves the next one; where replicas take longer to start, also by the time of a start. Waiting
requests are added, to be answered within a period: once a queue is full, no more can arrive than
are answered. Demand falls late: it is the highest of `scale_down_s`, or of a start where that takes
longer, so that no replica is given up that would be missed before another one is ready.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cluster.controller.loads import Traffic

CLEAR = 2.0  # standard errors of the difference of two counts, beyond which a rise is one
# Largest rise to plan for, as a share of the rate: that of a load that doubles in one period.
LARGEST_RISE = 0.5
MAX_AHEAD_S = 1800.0
# What the optimizer takes: a replica that counts nonsense must not cost the others their plan.
MAX_PER_MINUTE, MAX_TOKENS = 1e9, 10**8


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A load in the optimizer's terms."""

    per_minute: float
    in_tokens: int
    out_tokens: int

    @classmethod
    def of(cls, per_minute: float, in_tokens: float, out_tokens: float) -> "OfferedLoad":
        """Returns a load of these means, within what the optimizer takes."""
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
class _Seen:
    at_s: float
    traffic: Traffic
    per_minute: float  # with what a rise adds, and what waits


class Demand:
    """The demand on one server."""

    def __init__(self, expected: OfferedLoad, scale_down_s: float) -> None:
        """`expected`: the load to plan for until something has been measured."""
        self._latest = expected
        self._next_per_minute = expected.per_minute
        self._scale_down_s = scale_down_s
        self._seen: deque[_Seen] = deque()
        self._first_s: float | None = None

    @property
    def load(self) -> OfferedLoad:
        return self._latest

    @property
    def next(self) -> OfferedLoad:
        """The load that the next period is expected to bring: the latest one, with its rise."""
        return replace(self._latest, per_minute=min(self._next_per_minute, MAX_PER_MINUTE))

    def see(self, traffic: Traffic, at_s: float, start_s: float = 0.0) -> None:
        """`start_s`: how long a replica takes until it is ready."""
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
        self._latest = OfferedLoad.of(highest, *self._tokens([each.traffic for each in recent]))

    def rest(self) -> None:
        """Nobody asks for it any more."""
        self._seen.clear()
        self._next_per_minute = 0.0
        self._latest = replace(self._latest, per_minute=0.0)

    def is_known(self, at_s: float) -> bool:
        """Whether it was observed for as long as a lower load must last before it counts."""
        return self._first_s is not None and at_s - self._first_s >= self._scale_down_s

    def _tokens(self, recent: Sequence[Traffic]) -> tuple[float, float]:
        """Means over the whole window, so that a plan does not follow a few requests."""
        ended = math.fsum(each.ended for each in recent)
        if ended < 1:
            return self._latest.in_tokens, self._latest.out_tokens
        prompt = math.fsum(each.prompt_tokens for each in recent)
        completion = math.fsum(each.completion_tokens for each in recent)
        return prompt / ended, completion / ended


def _joined(parts: Iterable[Traffic]) -> Traffic:
    """The arrivals of times that follow each other."""
    found = list(parts)
    seconds = math.fsum(each.seconds for each in found)
    return Traffic(seconds, math.fsum(each.arrived for each in found))


def _rise(before: Traffic, now: Traffic) -> float:
    """Requests a minute that one more time like `now` would add; 0 where chance explains it."""
    if not before.seconds or not now.seconds:
        return 0.0
    ratio = now.seconds / before.seconds
    expected = before.arrived * ratio
    rise = now.arrived - expected
    if rise <= CLEAR * math.sqrt(now.arrived + expected * ratio):
        return 0.0
    return min(60 * rise / now.seconds, LARGEST_RISE * now.per_minute)
