"""The upstreams and the choice between them.

Least busy user rows per weight, with a preference: for requests of one session, or with the same
prompt beginning, rendezvous hashing puts the replicas in an order, and they go to the first that is
not clearly busier than the rest. So a replica's prefix cache is met again without any table of
sessions, and a prompt that is too much for one replica has the same second one every time.

A replica that says in its health check how many user rows it has gets no more generating requests
than those and a few: the others are told to wait (AllRowsBusy).
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.clients.inbound import RoutingHints
from proxy.errors import AllRowsBusy, UpstreamNotReady, UpstreamUnreachable
from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.keys import UpstreamKeys
from proxy.upstreams.routes import NO_ROUTES, RouteBackend, Routes, rendezvous, servers_in_turn
from proxy.upstreams.specs import UpstreamSpec
from proxy.upstreams.upstream import FIRST_COOLDOWN_S, Upstream, UpstreamHealth, UpstreamRows

log = logging.getLogger(__name__)

# A preferred replica is left when it has more than this times the mean load, plus the slack.
# (Consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2018.)
MAX_LOAD_FACTOR = 1.25
LOAD_SLACK = 2.0
# Answers that were broken, garbled or late before an upstream is left alone for a while;
# one refused connection is enough.
MAX_FAILURES = 3
MAX_COOLDOWN_S = 60.0
# Health checks in a row without any answer before an upstream is not even tried for want of
# another: a request would wait as long as it may. One may have been a moment's load.
MAX_SILENT_CHECKS = 2


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """A snapshot for those who watch."""

    name: str
    in_flight: int
    is_usable: bool


class Balancer:
    """Chooses upstreams and remembers their failures. Any thread."""

    def __init__(
        self,
        specs: Sequence[UpstreamSpec],
        connect_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_in_flight: int = 4096,
        stall_timeout_s: float = math.inf,
        keys: Callable[[], UpstreamKeys] = dict,
        routes: Callable[[], Routes] = lambda: NO_ROUTES,
    ) -> None:
        """`max_in_flight` is of each upstream, `stall_timeout_s` of the silence of its streams."""
        self._connect_timeout_s = connect_timeout_s
        self._max_in_flight = max_in_flight
        self._stall_timeout_s = stall_timeout_s
        self._keys = keys
        self._routes = routes
        self._clock = clock
        self._lock = threading.Lock()
        self._affinity: Counter[str] = Counter()
        self._upstreams: tuple[Upstream, ...] = ()
        self.replace(specs)

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return self._upstreams

    def replace(self, specs: Sequence[UpstreamSpec]) -> None:
        """Take a new list. Upstreams that stay keep their state; streams of the others run on."""
        with self._lock:
            known = {upstream.spec: upstream for upstream in self._upstreams}
            kept = tuple(known.pop(spec) if spec in known else self._make(spec) for spec in specs)
            self._upstreams = kept
        for gone in known.values():
            gone.pool.close()

    def snapshot(self) -> tuple[UpstreamStatus, ...]:
        with self._lock:
            return tuple(
                UpstreamStatus(upstream.name, upstream.in_flight, self._is_usable(upstream))
                for upstream in self._upstreams
            )

    def affinity_counts(self) -> dict[str, int]:
        """Requests with a preference: `kept` by the replica that it names, or `moved`."""
        with self._lock:
            return dict(self._affinity)

    def is_ready(self) -> bool:
        with self._lock:
            return any(self._is_usable(upstream) for upstream in self._upstreams)

    def none_is_ready(self) -> bool:
        """Whether all say so or refuse connections. False while any is silent, or none is known."""
        with self._lock:
            healths = {upstream.health for upstream in self._upstreams}
        return healths == {UpstreamHealth.NOT_READY}

    def choose(
        self,
        hints: RoutingHints,
        excluded: AbstractSet[Upstream] = frozenset(),
        *,
        takes_row: bool = False,
    ) -> Upstream:
        """The upstream for a request, counted as in flight until `finish`.

        What takes no row and names no model that is served may go to any, as all have such routes.
        When all that are ready have been ejected, one of them is tried all the same: an upstream's
        own answer says more than our memory. Raises UpstreamUnreachable when all are excluded,
        UpstreamNotReady when none passes its health checks, and AllRowsBusy when waiting helps.
        """
        with self._lock:
            if not self._upstreams:
                raise UpstreamNotReady("no upstream is listed")
            serving = self._serving(hints, excluded, takes_row=takes_row)
            if not serving:
                raise UpstreamUnreachable(
                    f"no upstream left for model {hints.model!r} of {len(self._upstreams)}"
                )
            usable = [upstream for upstream in serving if self._is_usable(upstream)]
            candidates = usable or [upstream for upstream in serving if _may_answer(upstream)]
            if not candidates:
                states = (f"{upstream.name} is {upstream.health.value}" for upstream in serving)
                raise UpstreamNotReady(", ".join(states))
            for group in self._groups(candidates, hints):
                if free := [each for each in group if self._has_room(each, takes_row)]:
                    chosen = self._pick(free, group, hints.affinity_key)
                    chosen.share(self._clock())
                    chosen.in_flight += 1
                    return chosen
            raise AllRowsBusy(", ".join(f"{u.name} has {u.in_flight}" for u in candidates))

    def line_of(self, hints: RoutingHints) -> tuple[str, ...]:
        """Returns the names of the upstreams that a request for a row may go to."""
        return tuple(u.name for u in self._serving(hints, frozenset(), takes_row=True))

    def has_alternative(
        self, hints: RoutingHints, excluded: AbstractSet[Upstream], *, takes_row: bool
    ) -> bool:
        """Whether a usable upstream is left beside `excluded`."""
        with self._lock:
            return any(map(self._is_usable, self._serving(hints, excluded, takes_row=takes_row)))

    def with_other_models(self, upstream: Upstream) -> list[Upstream]:
        """One usable upstream for each list of models that is not the upstream's own."""
        if self._upstreams == (upstream,):
            return []
        with self._lock:
            usable = [each for each in self._upstreams if self._is_usable(each)]
        found = {each.spec.models: each for each in usable}
        found.pop(upstream.spec.models, None)
        return list(found.values())

    def finish(self, upstream: Upstream, *, had_row: bool = True) -> None:
        """`had_row`: it was not refused for want of one."""
        with self._lock:
            upstream.share(self._clock())
            upstream.in_flight -= 1
            if had_row:
                upstream.is_full = False

    def share_s(self, upstream: Upstream) -> float:
        """Seconds that a request would have had of the upstream that was there all along, if those
        that are there at a time have equal shares of it. Requests count between two readings."""
        if upstream.spec.cents_per_hour is None:
            return 0.0
        with self._lock:
            upstream.share(self._clock())
            return upstream.share_s

    def report_full(self, upstream: Upstream) -> bool:
        """It said that it takes no more. Returns whether to wait for a row of it."""
        with self._lock:
            upstream.is_full = upstream.rows is not None
            return upstream.is_full

    def begin_stream(self, upstream: Upstream) -> None:
        with self._lock:
            upstream.num_streams += 1
            upstream.last_piece_s = self._clock()

    def end_stream(self, upstream: Upstream) -> None:
        with self._lock:
            upstream.num_streams -= 1

    def note_piece(self, upstream: Upstream) -> None:
        """A piece of a stream has come. Without the lock, as it is one assignment."""
        upstream.last_piece_s = self._clock()

    def report_success(self, upstream: Upstream) -> None:
        if upstream.num_failures or upstream.cooldown_s > FIRST_COOLDOWN_S:  # which is rare
            with self._lock:
                upstream.num_failures = 0
                upstream.cooldown_s = FIRST_COOLDOWN_S

    def report_failure(self, upstream: Upstream, *, is_unreachable: bool = False) -> None:
        """Count a failure; leave the upstream alone for a while when there are too many.

        While it is left alone none counts: they are of streams that broke together, and would
        make of one crash an ejection of a minute."""
        with self._lock:
            if self._clock() < upstream.ejected_until_s:
                return
            upstream.num_failures += 1
            if not is_unreachable and upstream.num_failures < MAX_FAILURES:
                return
            upstream.num_failures = 0
            upstream.ejected_until_s = self._clock() + upstream.cooldown_s
            upstream.was_unreachable = is_unreachable
            cooldown_s = upstream.cooldown_s
            upstream.cooldown_s = min(2 * cooldown_s, MAX_COOLDOWN_S)
        log.warning("upstream %s ejected for %g s", upstream.name, cooldown_s)

    def report_health(
        self, upstream: Upstream, health: UpstreamHealth, rows: UpstreamRows | None = None
    ) -> None:
        """The result of an active check. One that got through also ends an ejection for being
        unreachable; answers that break say nothing in a health check's favour.
        """
        with self._lock:
            has_changed = upstream.health is not health
            upstream.health = health
            is_silent = health is UpstreamHealth.SILENT
            upstream.num_silent_checks = upstream.num_silent_checks + 1 if is_silent else 0
            if not is_silent:
                upstream.rows, upstream.is_full = rows or upstream.rows_by_list, False
                num_taken = rows.num_taken if rows else 0
                upstream.share(self._clock())
                upstream.num_taken_by_others = max(0, num_taken - upstream.in_flight)
            if health is UpstreamHealth.READY and upstream.was_unreachable:
                upstream.ejected_until_s = 0.0
        if has_changed:
            level = logging.INFO if health is UpstreamHealth.READY else logging.WARNING
            log.log(level, "upstream %s is %s", upstream.name, health.value)

    def close(self) -> None:
        for upstream in self._upstreams:
            upstream.pool.close()

    def _make(self, spec: UpstreamSpec) -> Upstream:
        parts = urlsplit(spec.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        pool = ConnectionPool(parts.scheme, parts.hostname or "", port, self._connect_timeout_s)
        return Upstream(spec, pool, self._keys)

    def route_of(self, hints: RoutingHints) -> tuple[RouteBackend, ...]:
        return self._routes().of(hints.model)

    def _serving(
        self, hints: RoutingHints, excluded: AbstractSet[Upstream], *, takes_row: bool
    ) -> list[Upstream]:
        serving = [u for u in self._upstreams if not u.spec.models or hints.model in u.spec.models]
        if backends := self.route_of(hints):
            servers = {each.server for each in backends}
            serving = [upstream for upstream in serving if upstream.spec.server in servers]
        if not serving and not takes_row:
            serving = list(self._upstreams)
        return [each for each in serving if each not in excluded] if excluded else serving

    def _groups(self, candidates: list[Upstream], hints: RoutingHints) -> Iterable[list[Upstream]]:
        """In the order in which they are to be asked; by the route, if the model has one."""
        backends = self.route_of(hints)
        if not backends:
            return (candidates,)
        present = {upstream.spec.server for upstream in candidates}
        in_turn = servers_in_turn(backends, present, hints.route_key)
        return ([each for each in candidates if each.spec.server == name] for name in in_turn)

    def _is_usable(self, upstream: Upstream) -> bool:
        now_s = self._clock()
        is_stalled = upstream.num_streams > 0 and (
            now_s - upstream.last_piece_s > self._stall_timeout_s
        )
        return (
            upstream.health is UpstreamHealth.READY
            and upstream.ejected_until_s <= now_s
            and not is_stalled
        )

    def _has_room(self, upstream: Upstream, takes_row: bool) -> bool:
        if upstream.in_flight >= self._max_in_flight:
            return False
        return upstream.has_row() if takes_row else True

    def _pick(
        self, free: Sequence[Upstream], group: Sequence[Upstream], affinity_key: str | None
    ) -> Upstream:
        """The first in the key's own order that is free and not too busy; else the least busy."""
        if len(group) == 1:
            return free[0]
        least = min(free, key=lambda upstream: upstream.load(1))
        if affinity_key is None:
            return least
        total_weight = sum(upstream.spec.weight for upstream in free)
        in_all = sum(upstream.load() * upstream.spec.weight for upstream in free)
        mean_load = (in_all + 1) / total_weight
        bound = MAX_LOAD_FACTOR * mean_load + LOAD_SLACK
        open_ones = {upstream for upstream in free if upstream.load() <= bound}
        order = sorted(group, key=lambda u: -rendezvous(affinity_key, u.spec.url, u.spec.weight))
        chosen = next((upstream for upstream in order if upstream in open_ones), least)
        self._affinity["kept" if chosen is order[0] else "moved"] += 1
        return chosen


def _may_answer(upstream: Upstream) -> bool:
    """Whether it is worth trying although it is not ready, or has been ejected."""
    if upstream.health is UpstreamHealth.SILENT:
        return upstream.num_silent_checks < MAX_SILENT_CHECKS
    return upstream.health is UpstreamHealth.READY
