"""Computes the traffic between two cycles from differences of readings, and the demand on a server
from its recent traffic.

Arrivals are the requests that ended plus the change in the number of requests present. They include
a growing queue, and requests that wait in the proxy.

Demand rises at once. A clear rise is extrapolated by one period, because replicas started now serve
the next period, or by the time that a replica takes to start if that is longer. Waiting requests
are added, to be answered within a period: once a queue is full, arrivals cannot exceed answers.
Demand falls late: it is the highest of the last `scale_down_s`, or of the time of a start if that
is longer, so that no replica is stopped that would be needed before another could be ready.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from cluster.controller.forecasts import JudgedForecasts
from cluster.controller.pages import Readings
from cluster.engines import Counted, Counters
from cluster.replicas import Group, Replica, ReplicaState
from cluster.system import SystemDocument

LEAST_READ = 0.5  # share of a server's replicas that must answer, to assume the same of the others
CLEAR = 2.0  # a rise is clear above this many standard errors of the difference of two counts
# Largest rise to plan for, as a share of the rate: the load doubles in one period.
LARGEST_RISE = 0.5
MAX_AHEAD_S = 1800.0
# Bounds of the optimizer: a replica with impossible counts must not prevent a plan for the others.
MAX_PER_MINUTE, MAX_TOKENS = 1e9, 10**8


@dataclass(frozen=True, slots=True)
class Traffic(Counted):
    """The traffic of some replicas over a time. At its end they have `present` requests; `waiting`
    of these have no row."""

    seconds: float = 0.0
    arrived: float = 0.0
    waiting: float = 0.0
    present: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Returns the traffic of both together over the same time."""
        added = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "seconds"
        }
        return Traffic(max(self.seconds, other.seconds), **added)

    @property
    def per_minute(self) -> float:
        return 60 * self.arrived / self.seconds if self.seconds else 0.0

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean tokens of the prompts and answers that ended; only if any did."""
        return self.prompt_tokens / self.ended, self.completion_tokens / self.ended

    @property
    def ttft_ms(self) -> float | None:
        return 1000 * self.ttft_s / self.ttft_count if self.ttft_count else None

    @property
    def itl_ms(self) -> float | None:
        return 1000 * self.itl_s / self.itl_count if self.itl_count else None


@dataclass(frozen=True, slots=True)
class ServerTraffic:
    """A server's traffic, `all` and by group. `unread` says why it is unknown; empty if known."""

    all: Traffic = Traffic()
    by_group: Mapping[Group, Traffic] = field(default_factory=dict)
    unread: str = ""
    missed: tuple[str, ...] = ()
    """Replicas that did not answer and are assumed to be like the others."""


def between(before: Counters, now: Counters) -> Traffic:
    """Returns the traffic between two readings. A restarted process counts from 0."""
    seconds = now.at_s - before.at_s
    if now.ended < before.ended or now.completion_tokens < before.completion_tokens:
        before = Counters(before.at_s)
    ended = now.ended - before.ended
    return Traffic(
        max(seconds, 0.0),
        max(ended + now.present - before.present, 0.0),
        now.waiting,
        now.present,
        **{
            each.name: max(getattr(now, each.name) - getattr(before, each.name), 0.0)
            for each in fields(Counted)
        },
    )


def traffic_of(
    replicas: Iterable[Replica], before: Readings, now: Readings, since_s: float | None
) -> dict[str, ServerTraffic]:
    """Returns traffic by server, for servers that have replicas to read.

    `since_s` is the time of the earlier readings. A replica without an earlier reading is new, and
    its counters start at 0 then. First readings (None) give no traffic."""
    found: dict[str, dict[Group, list[Traffic]]] = defaultdict(lambda: defaultdict(list))
    missed: dict[str, list[str]] = defaultdict(list)
    for replica in replicas:
        reading = now.get(replica.name)
        if reading is None:
            continue
        group = replica.group
        earlier = before.get(replica.name, None if since_s is None else Counters(since_s))
        if isinstance(reading, Counters) and isinstance(earlier, Counters):
            found[group.server][group].append(between(earlier, reading))
        elif replica.state is ReplicaState.READY:
            why = str(reading) if isinstance(reading, Exception) else "read once so far"
            missed[group.server].append(f"{replica.name}: {why}")
    return {
        server: _of_server(found.get(server, {}), missed.get(server, []))
        for server in sorted({*found, *missed})
    }


def _of_server(by_group: Mapping[Group, Sequence[Traffic]], missed: list[str]) -> ServerTraffic:
    num_read = sum(map(len, by_group.values()))
    if num_read < LEAST_READ * (num_read + len(missed)) or not num_read:
        return ServerTraffic(unread=missed[0], missed=tuple(missed))
    groups = {group: sum(each, Traffic()) for group, each in by_group.items()}
    together = sum(groups.values(), Traffic())
    if missed:
        share = (num_read + len(missed)) / num_read
        together = replace(together, arrived=together.arrived * share)
    return ServerTraffic(together, groups, missed=tuple(missed))


def with_door(
    traffic: Mapping[str, ServerTraffic], waiting: float, growth: float
) -> dict[str, ServerTraffic]:
    """Returns the traffic including requests in the proxy: `waiting` now, `growth` more than
    before. The proxy does not say for which server they are, so they are shared out like arrivals
    or, if there are none because all rows have long answers, like the requests present."""
    shares = {server: each.all.arrived for server, each in traffic.items()}
    if not any(shares.values()):
        shares = {server: each.all.present for server, each in traffic.items()}
    total = math.fsum(shares.values())
    if not total:
        return dict(traffic)
    found = {}
    for server, each in traffic.items():
        share, all_ = shares[server] / total, each.all
        arrived = max(all_.arrived + share * growth, 0.0)
        all_ = replace(all_, arrived=arrived, waiting=all_.waiting + share * waiting)
        found[server] = replace(each, all=all_)
    return found


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


def expected_load(system: SystemDocument, server: str) -> OfferedLoad:
    """Returns the load that the document expects, which is used until a load was measured."""
    load = system.load(server)
    return OfferedLoad(
        float(load.get("arrivalRate") or 0.0),
        int(load.get("avgInTokens") or 0),
        int(load.get("avgOutTokens") or 0),
    )


@dataclass(frozen=True, slots=True)
class PastLoad:
    """A load and the time at which it was planned for."""

    at_s: float
    load: OfferedLoad


@dataclass(frozen=True, slots=True)
class Past:
    """What an earlier controller knew: its judged forecasts, oldest first, and by server the load
    that it measured last and the durations of the last starts."""

    judged: Sequence[JudgedForecasts] = ()
    loads: Mapping[str, PastLoad] = field(default_factory=dict)
    starts_s: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    traffic: Traffic
    per_minute: float  # includes a rise and waiting requests


class Demand:
    """The demand on one server. Controller thread only; the rest of this module is pure."""

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
