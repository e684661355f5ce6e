"""The upstreams, and the choice of one for each request.

A request goes to the upstream with the fewest busy user rows per weight, with one preference.
Rendezvous hashing puts the replicas in an order for each session and each beginning of a prompt,
and requests go to the first that is not clearly busier than the rest. So they find its prefix cache
without a table of sessions, and a prompt that is too much for one replica always has the same
second one.

A replica that reports its number of user rows gets no more generating requests than that and a few.
Further ones have to wait (AllRowsBusy).
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from proxy.clients.inbound import RoutingHints
from proxy.errors import AllRowsBusy, NoSuchModel, UpstreamNotReady, UpstreamUnreachable
from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.routes import NO_ROUTES, RouteBackend, Routes, rendezvous, servers_in_turn
from proxy.upstreams.specs import UpstreamKeys, UpstreamSpec

log = logging.getLogger(__name__)

# A request leaves its preferred replica if that has more than this times the mean load, plus the
# slack (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2018).
MAX_LOAD_FACTOR = 1.25
LOAD_SLACK = 2.0
# Broken, malformed or late answers after which an upstream is ejected for a while. One refused
# connection is enough.
MAX_FAILURES = 3
FIRST_COOLDOWN_S, MAX_COOLDOWN_S = 2.0, 60.0
# Unanswered health checks in a row after which an upstream is not tried even if no other is left,
# because a request would wait as long as it may. A single one may be due to a moment's load.
MAX_SILENT_CHECKS = 2
# Assumed number of user rows of an upstream that does not report it.
USUAL_ROWS = 32
# Beyond its rows a replica gets one more request per this many rows, so that no row has to wait
# until its next request comes over the network.
ROWS_PER_QUEUED = 8


class UpstreamHealth(Enum):
    """The result of a health check."""

    READY = "ready"
    NOT_READY = "not ready"
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class UpstreamRows:
    """An upstream's user rows, as it reports them. `num_taken` includes requests that wait."""

    num: int
    num_taken: int


@dataclass(slots=True, eq=False)
class Upstream:
    """One server and what we know of it. Its fields are the Balancer's."""

    spec: UpstreamSpec
    pool: ConnectionPool
    keys: Callable[[], UpstreamKeys] = dict  # reads the current keys of all upstreams
    clock: Callable[[], float] = time.monotonic
    reports_usage: bool = True  # False: it refused the question for usage
    in_flight: int = 0
    health: UpstreamHealth = UpstreamHealth.READY
    num_silent_checks: int = 0  # unanswered health checks in a row
    num_failures: int = 0
    cooldown_s: float = FIRST_COOLDOWN_S
    ejected_until_s: float = 0.0
    was_unreachable: bool = False  # reason of the last ejection; False: broken answers
    rows: UpstreamRows | None = None  # None: not known
    num_taken_by_others: int = 0  # rows that others had taken at the last health check
    is_full: bool = False  # it said so itself, and none of its rows has come free since
    num_streams: int = 0  # streams that are being relayed
    last_piece_s: float = 0.0  # when the last piece of any stream came
    shared_s: float = 0.0  # see `share`
    shared_until_s: float = 0.0
    host: str = field(init=False)
    base_path: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.spec.url)
        self.host, self.base_path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self.name = self.host + self.base_path
        self.rows = self.rows_by_list

    @property
    def rows_by_list(self) -> UpstreamRows | None:
        """The rows in the upstreams file. How many of them others have taken is not known."""
        return UpstreamRows(self.spec.rows, 0) if self.spec.rows else None

    @property
    def key(self) -> tuple[str, str] | None:
        return self.keys().get(self.spec.url.rstrip("/"))

    def load(self, num_more: int = 0) -> float:
        """Returns the requests, and `num_more`, per weight, scaled to the usual number of rows."""
        num_rows = self.rows.num if self.rows else USUAL_ROWS
        num_requests = self.in_flight + self.num_taken_by_others + num_more
        return num_requests / self.spec.weight * USUAL_ROWS / num_rows

    def share(self) -> float:
        """Returns the upstream's seconds, divided equally among the requests in flight at the time;
        0 without a price. A request's share is the difference between the values at its end and at
        its beginning. Call this before the number of requests changes."""
        if self.spec.cents_per_hour is not None:
            now_s = self.clock()
            num_requests = max(1, self.in_flight + self.num_taken_by_others)
            self.shared_s += (now_s - self.shared_until_s) / num_requests
            self.shared_until_s = now_s
        return self.shared_s

    def begin_stream(self) -> None:
        self.num_streams += 1
        self.last_piece_s = self.clock()

    def note_piece(self) -> None:
        """A piece of a stream has come."""
        self.last_piece_s = self.clock()

    def end_stream(self) -> None:
        self.num_streams -= 1

    def has_row(self) -> bool:
        """Returns whether one more request has a row, or gets the first one that comes free."""
        if self.rows is None:
            return True
        room = self.rows.num + max(1, self.rows.num // ROWS_PER_QUEUED)
        return not self.is_full and self.in_flight + self.num_taken_by_others < room


@dataclass(slots=True, eq=False)
class Balancer:
    """Chooses upstreams and remembers their failures. Event loop only, except for reading
    `upstreams`, `is_usable`, `is_ready` and `affinity`."""

    specs: InitVar[Sequence[UpstreamSpec]]
    connect_timeout_s: float
    clock: Callable[[], float] = time.monotonic
    _: KW_ONLY
    max_in_flight: int = 4096  # at one upstream
    stall_timeout_s: float = math.inf  # bounds the silence of an upstream's streams
    keys: Callable[[], UpstreamKeys] = dict
    routes: Callable[[], Routes] = lambda: NO_ROUTES
    # How many requests their preferred replica got (`kept`), or another (`moved`).
    affinity: Counter[str] = field(default_factory=Counter)
    upstreams: tuple[Upstream, ...] = ()  # replaced whole
    listed_models: set[str] = field(default_factory=set)  # what upstreams have had since the start

    def __post_init__(self, specs: Sequence[UpstreamSpec]) -> None:
        self.replace(specs)

    def replace(self, specs: Sequence[UpstreamSpec]) -> None:
        """Takes a new list. Upstreams that stay keep their state; streams of the others run on."""
        self.listed_models.update(*(spec.models for spec in specs))
        previous = {upstream.spec: upstream for upstream in self.upstreams}
        self.upstreams = tuple(
            previous.pop(spec) if spec in previous else self._make(spec) for spec in specs
        )
        for removed in previous.values():
            removed.pool.close()

    def is_usable(self, upstream: Upstream) -> bool:
        """Whether it passes its health checks, is not ejected, and its streams go on."""
        now_s = self.clock()
        is_stalled = upstream.num_streams > 0 and (
            now_s - upstream.last_piece_s > self.stall_timeout_s
        )
        return (
            upstream.health is UpstreamHealth.READY
            and upstream.ejected_until_s <= now_s
            and not is_stalled
        )

    def is_ready(self) -> bool:
        return any(self.is_usable(upstream) for upstream in self.upstreams)

    def none_is_ready(self) -> bool:
        """Returns whether all upstreams are NOT_READY. False if one is silent, or none listed."""
        healths = {upstream.health for upstream in self.upstreams}
        return healths == {UpstreamHealth.NOT_READY}

    def choose(
        self, hints: RoutingHints, excluded: AbstractSet[Upstream] = frozenset()
    ) -> Upstream:
        """Returns the upstream for a request, which counts as in flight until `finish`.

        A request that takes no row, for a model that nobody serves, may go to any upstream, because
        all have such routes. If all ready upstreams are ejected, one of them is tried, because its
        own answer says more than our memory. Raises UpstreamUnreachable if all are excluded,
        NoSuchModel if none ever had the model, UpstreamNotReady if none passes its health checks,
        and AllRowsBusy if waiting helps.
        """
        if not self.upstreams:
            raise UpstreamNotReady("no upstream is listed")
        serving = self._serving(hints, excluded)
        if not serving:
            # None: perhaps it is not readable.
            is_known = hints.model in {None, *self.listed_models} or self.route_of(hints)
            error = UpstreamUnreachable if is_known else NoSuchModel
            raise error(f"no upstream left for model {hints.model!r} of {len(self.upstreams)}")
        usable = [upstream for upstream in serving if self.is_usable(upstream)]
        candidates = usable or [upstream for upstream in serving if _may_answer(upstream)]
        if not candidates:
            states = (f"{upstream.name} is {upstream.health.value}" for upstream in serving)
            raise UpstreamNotReady(", ".join(states))
        for group in self._groups(candidates, hints):
            if free := [each for each in group if self._has_room(each, hints.takes_row)]:
                chosen = self._pick(free, group, hints.affinity_key)
                chosen.share()
                chosen.in_flight += 1
                return chosen
        raise AllRowsBusy(", ".join(f"{u.name} has {u.in_flight}" for u in candidates))

    def line_of(self, hints: RoutingHints) -> tuple[str, ...]:
        """Returns the names of the upstreams that a request may go to."""
        return tuple(upstream.name for upstream in self._serving(hints))

    def has_alternative(
        self, hints: RoutingHints, excluded: AbstractSet[Upstream] = frozenset()
    ) -> bool:
        """Returns whether a usable upstream is left besides `excluded`."""
        return any(map(self.is_usable, self._serving(hints, excluded)))

    def with_other_models(self, upstream: Upstream) -> list[Upstream]:
        """Returns one usable upstream for each list of models that differs from this one's."""
        if self.upstreams == (upstream,):
            return []
        usable = [each for each in self.upstreams if self.is_usable(each)]
        found = {each.spec.models: each for each in usable}
        found.pop(upstream.spec.models, None)
        return list(found.values())

    def finish(self, upstream: Upstream, *, had_row: bool = True) -> None:
        """Ends a request. `had_row` is False if it was refused for lack of a row."""
        upstream.share()
        upstream.in_flight -= 1
        if had_row:
            upstream.is_full = False

    def report_full(self, upstream: Upstream) -> bool:
        """Records that an upstream takes no more. Returns whether to wait for one of its rows."""
        upstream.is_full = upstream.rows is not None
        return upstream.is_full

    def report_success(self, upstream: Upstream) -> None:
        upstream.num_failures = 0
        upstream.cooldown_s = FIRST_COOLDOWN_S

    def report_failure(self, upstream: Upstream, *, is_unreachable: bool = False) -> None:
        """Counts a failure, and ejects the upstream for a while if there are too many.

        Failures during an ejection do not count: they come from streams that broke together, and
        one crash would cause an ejection of a minute."""
        if self.clock() < upstream.ejected_until_s:
            return
        upstream.num_failures += 1
        if not is_unreachable and upstream.num_failures < MAX_FAILURES:
            return
        upstream.num_failures = 0
        upstream.ejected_until_s = self.clock() + upstream.cooldown_s
        upstream.was_unreachable = is_unreachable
        log.warning("upstream %s ejected for %g s", upstream.name, upstream.cooldown_s)
        upstream.cooldown_s = min(2 * upstream.cooldown_s, MAX_COOLDOWN_S)

    def report_health(
        self, upstream: Upstream, health: UpstreamHealth, rows: UpstreamRows | None = None
    ) -> None:
        """Records the result of a health check. READY also ends the ejection of an upstream that
        was unreachable, but not an ejection for broken answers."""
        has_changed = upstream.health is not health
        upstream.health = health
        is_silent = health is UpstreamHealth.SILENT
        upstream.num_silent_checks = upstream.num_silent_checks + 1 if is_silent else 0
        if not is_silent:
            upstream.rows, upstream.is_full = rows or upstream.rows_by_list, False
            num_taken = rows.num_taken if rows else 0
            upstream.share()
            upstream.num_taken_by_others = max(0, num_taken - upstream.in_flight)
        if health is UpstreamHealth.READY and upstream.was_unreachable:
            upstream.ejected_until_s = 0.0
        if has_changed:
            level = logging.INFO if health is UpstreamHealth.READY else logging.WARNING
            log.log(level, "upstream %s is %s", upstream.name, health.value)

    def close(self) -> None:
        for upstream in self.upstreams:
            upstream.pool.close()

    def _make(self, spec: UpstreamSpec) -> Upstream:
        parts = urlsplit(spec.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        pool = ConnectionPool(parts.scheme, parts.hostname or "", port, self.connect_timeout_s)
        return Upstream(spec, pool, self.keys, self.clock)

    def route_of(self, hints: RoutingHints) -> tuple[RouteBackend, ...]:
        return self.routes().of(hints.model)

    def _serving(
        self, hints: RoutingHints, excluded: AbstractSet[Upstream] = frozenset()
    ) -> list[Upstream]:
        serving = [u for u in self.upstreams if not u.spec.models or hints.model in u.spec.models]
        if backends := self.route_of(hints):
            servers = {each.server for each in backends}
            serving = [upstream for upstream in serving if upstream.spec.server in servers]
        if not serving and not hints.takes_row:
            serving = list(self.upstreams)
        return [each for each in serving if each not in excluded] if excluded else serving

    def _groups(self, candidates: list[Upstream], hints: RoutingHints) -> Iterable[list[Upstream]]:
        """Returns groups in the order in which to ask them: by the model's route, if it has one."""
        backends = self.route_of(hints)
        if not backends:
            return (candidates,)
        present = {upstream.spec.server for upstream in candidates}
        in_turn = servers_in_turn(backends, present, hints.route_key)
        return ([each for each in candidates if each.spec.server == name] for name in in_turn)

    def _has_room(self, upstream: Upstream, takes_row: bool) -> bool:
        is_open = upstream.in_flight < self.max_in_flight
        return is_open and (not takes_row or upstream.has_row())

    def _pick(
        self, free: Sequence[Upstream], group: Sequence[Upstream], affinity_key: str | None
    ) -> Upstream:
        """Returns the first in the key's order that is free and not too busy, or the least busy."""
        if len(group) == 1:
            return free[0]
        least = min(free, key=lambda upstream: upstream.load(1))
        if affinity_key is None:
            return least
        total_weight = sum(upstream.spec.weight for upstream in free)
        in_all = sum(upstream.load() * upstream.spec.weight for upstream in free)
        mean_load = (in_all + 1) / total_weight
        bound = MAX_LOAD_FACTOR * mean_load + LOAD_SLACK
        candidates = {upstream for upstream in free if upstream.load() <= bound}
        order = sorted(group, key=lambda u: -rendezvous(affinity_key, u.spec.url, u.spec.weight))
        chosen = next((upstream for upstream in order if upstream in candidates), least)
        self.affinity["kept" if chosen is order[0] else "moved"] += 1
        return chosen


def _may_answer(upstream: Upstream) -> bool:
    """Returns whether to try an upstream that has been ejected, or is silent for a moment."""
    if upstream.health is UpstreamHealth.SILENT:
        return upstream.num_silent_checks < MAX_SILENT_CHECKS
    return upstream.health is UpstreamHealth.READY
