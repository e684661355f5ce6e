"""Decides when idle servers scale to 0, and measures how long replicas take to start.

Controller thread only, unless stated otherwise."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.replicas import Replica, ReplicaState

STARTS_KEPT = 5


@dataclass(frozen=True, slots=True)
class Sleep:
    """Keeps the time of the last request for each server that may scale to 0."""

    idle_s: Mapping[str, float]  # how long each server must be idle before it sleeps
    _requested_s: dict[str, float] = field(default_factory=dict)

    def note(self, server: str, at_s: float) -> None:
        """Note a request for a server."""
        self._requested_s[server] = at_s

    def awake(self, at_s: float) -> set[str]:
        """Returns the servers that may sleep but are in use; each needs at least one replica."""
        return {
            name
            for name, idle_s in self.idle_s.items()
            if at_s - self._requested_s.get(name, -math.inf) < idle_s
        }

    def asleep(self, at_s: float) -> set[str]:
        return self.idle_s.keys() - self.awake(at_s)


@dataclass(frozen=True, slots=True)
class StartForecast:
    """Forecasts when a server has a ready replica. Immutable: any thread.

    `longest_s` is the longest of its last starts; None before the first. `begun_s` is the earliest
    start of its starting or ready replicas; infinite without any."""

    longest_s: float | None = None
    begun_s: float = math.inf

    def ready_in_s(self, now_s: float) -> float | None:
        """Returns the seconds from now; None until a start was measured."""
        if self.longest_s is None:
            return None
        return max(self.longest_s - max(now_s - self.begun_s, 0.0), 0.0)


class StartTimes:
    """Measures how long replicas take from their start until they are ready."""

    def __init__(self, past_s: Mapping[str, Iterable[float]] | None = None) -> None:
        """`past_s` has the durations of each server's earlier starts, oldest first."""
        self._seen_s: float | None = None  # when replicas were last looked at
        self._names: set[str] = set()  # replicas that were there then
        self._begun_s: dict[str, float] = {}
        self._starting: set[str] = set()
        self._took_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=STARTS_KEPT))
        for server, took_s in (past_s or {}).items():
            self._took_s[server].extend(took_s)

    @property
    def took_s(self) -> dict[str, list[float]]:
        """Returns the durations of each server's last starts, oldest first."""
        return {server: list(took_s) for server, took_s in self._took_s.items() if took_s}

    def see(self, replicas: Sequence[Replica], now_s: float) -> dict[str, StartForecast]:
        """Returns a forecast for each server that has ever had replicas. A new one was started when
        they were last looked at; it is not known when those were that are there at first."""
        names = {each.name for each in replicas}
        if self._seen_s is not None:
            self._begun_s |= dict.fromkeys(names - self._names, self._seen_s)
            self._starting |= names - self._names
        self._names, self._seen_s = names, now_s
        present = [r for r in replicas if r.state in (ReplicaState.STARTING, ReplicaState.READY)]
        self._begun_s = {r.name: self._begun_s.get(r.name, now_s) for r in present}
        for each in present:
            if each.state is ReplicaState.READY and each.name in self._starting:
                self._took_s[each.group.server].append(now_s - self._begun_s[each.name])
                self._starting.remove(each.name)
        self._starting &= self._begun_s.keys()
        servers = {*self._took_s, *(each.group.server for each in present)}
        return {server: self._forecast(server, present) for server in servers}

    def _forecast(self, server: str, present: Iterable[Replica]) -> StartForecast:
        begun = [self._begun_s[each.name] for each in present if each.group.server == server]
        longest_s = max(self._took_s[server], default=None)
        return StartForecast(longest_s, min(begun, default=math.inf))
