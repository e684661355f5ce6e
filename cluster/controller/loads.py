"""Computes the traffic between two cycles from differences of readings. Pure: any thread.

Arrivals are the requests that ended plus the change in the number of requests present. They include
a growing queue, and requests that wait in the proxy.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from cluster.controller.pages import Readings
from cluster.engines import Counted, Counters
from cluster.replicas import Group, Replica, ReplicaState

LEAST_READ = 0.5  # share of a server's replicas that must answer, to assume the same of the others


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
