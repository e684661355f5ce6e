"""How much a server has to be able to take, by what came lately. Controller thread only.

Up at once: a clear rise is taken to go on for one more period, as what is started now serves the
next one. Down late: the highest demand of `scale_down_s` decides.
"""

import math
from collections import deque
from dataclasses import dataclass

from cluster.controller.loads import Traffic

CLEAR = 2.0  # standard errors of the difference of two counts, beyond which a rise is one


@dataclass(frozen=True, slots=True)
class Load:
    """As the optimizer's `load`."""

    per_minute: float
    in_tokens: int
    out_tokens: int

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
    per_minute: float  # with what a rise adds


class Demand:
    """Of one server."""

    def __init__(self, expected: Load, scale_down_s: float) -> None:
        """`expected`: what is planned for until something was measured."""
        self._latest = expected
        self._scale_down_s = scale_down_s
        self._seen: deque[_Seen] = deque()

    @property
    def load(self) -> Load:
        return self._latest

    def see(self, traffic: Traffic, at_s: float) -> None:
        before = self._seen[-1].traffic if self._seen else None
        self._seen.append(_Seen(at_s, traffic, traffic.per_minute + _rise(before, traffic)))
        while self._seen[0].at_s < at_s - self._scale_down_s and len(self._seen) > 1:
            self._seen.popleft()
        self._latest = Load(max(each.per_minute for each in self._seen), *self._tokens())

    def _tokens(self) -> tuple[int, int]:
        """Means over all that is remembered, so that a plan does not follow a few requests."""
        ended = math.fsum(each.traffic.ended for each in self._seen)
        if ended < 1:
            return self._latest.in_tokens, self._latest.out_tokens
        prompt = math.fsum(each.traffic.prompt_tokens for each in self._seen)
        completion = math.fsum(each.traffic.completion_tokens for each in self._seen)
        return round(prompt / ended), max(round(completion / ended), 1)


def _rise(before: Traffic | None, now: Traffic) -> float:
    """Requests a minute that one more period like this would add; 0 where chance explains it."""
    if before is None or not before.seconds or not now.seconds:
        return 0.0
    expected = before.arrived * now.seconds / before.seconds
    rise = now.arrived - expected
    return 60 * rise / now.seconds if rise > CLEAR * math.sqrt(now.arrived + expected) else 0.0
