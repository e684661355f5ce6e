"""Lets requests to a server without replicas wait until the cluster's controller starts one.

`CLUSTER_URL` names the controller. It is told which servers are waited for, and says how soon each
has a replica.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from common.fetch import FetchBounds, FetchFailed, ask, fetch
from proxy.background import Aside, Repeated
from proxy.clients.inbound import RoutingHints
from proxy.errors import AllRowsBusy, ServerStarting
from proxy.settings import Settings
from proxy.upstreams.balancer import Balancer
from proxy.upstreams.routes import servers_in_turn

log = logging.getLogger(__name__)

MAX_READY_IN_S = 1e6
BOUNDS = FetchBounds(connect_s=2.0, read_s=5.0, max_bytes=2**20)


class Sleeper(BaseModel):
    """A server that may have no replicas. Requests for `models` wake it; empty means any.
    `ready_in_s` is how long until it has a replica, once woken; None if not known."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    server: str
    models: frozenset[str] = frozenset()
    ready_in_s: Annotated[float, Field(ge=0, le=MAX_READY_IN_S)] | None = None


class _SleepersAnswer(BaseModel):
    servers: tuple[Sleeper, ...] = Field(max_length=1000)


def report_wanted(url: str, wanted: Collection[str]) -> tuple[Sleeper, ...]:
    """Tell the controller which servers are wanted, and return its answer. Blocks, within BOUNDS
    for each request. Raises FetchFailed and ValueError."""
    for server in sorted(wanted):
        ask(f"{url}/wake/{quote(server, safe='')}", BOUNDS, "POST")
    return _SleepersAnswer.model_validate_json(fetch(f"{url}/sleepers", BOUNDS)).servers


class Sleepers:
    """Asks the controller in `rounds`, every HEALTH_INTERVAL and when a request begins to wait.
    Without CLUSTER_URL no server sleeps. Event loop only, except for `has_any`."""

    def __init__(self, settings: Settings, balancer: Balancer, aside: Aside) -> None:
        self._settings, self._balancer, self._aside = settings, balancer, aside
        self._sleepers: tuple[Sleeper, ...] = ()
        self._waiting: Counter[str] = Counter()
        self._wanted: set[str] = set()  # servers wanted since the controller was last told
        self._reported: set[str] = set()  # servers that it was last told
        self._has_changed = asyncio.Event()
        self._fault = ""
        self.rounds = Repeated(self._ask, lambda: settings.health_interval)

    def __len__(self) -> int:
        """Number of requests that wait for a replica's start."""
        return self._waiting.total()

    @property
    def has_any(self) -> bool:
        return bool(self._sleepers)

    def look_again(self) -> None:
        """Wake waiting requests, because a server may have got a replica."""
        self._has_changed.set()
        self._has_changed = asyncio.Event()

    async def wake(self, hints: RoutingHints, deadline_s: float) -> bool:
        """Have the server of a request started, and wait for its first replica until a time of the
        loop's clock. Returns False if the server does not sleep. Raises AllRowsBusy if too many
        wait, and ServerStarting if the time does not suffice."""
        if (sleeper := self._of(hints)) is None:
            return False
        with self._counted(sleeper.server):
            try:
                async with asyncio.timeout_at(deadline_s):
                    while not self._balancer.has_alternative(hints):
                        ready_in_s = (self._of(hints) or sleeper).ready_in_s
                        left_s = deadline_s - asyncio.get_running_loop().time()
                        if ready_in_s is not None and ready_in_s > left_s:
                            raise ServerStarting(ready_in_s)
                        await self._has_changed.wait()
            except TimeoutError:
                raise ServerStarting((self._of(hints) or sleeper).ready_in_s) from None
        return True

    def _of(self, hints: RoutingHints) -> Sleeper | None:
        serving = (s for s in self._sleepers if not s.models or hints.model in s.models)
        by_name = {sleeper.server: sleeper for sleeper in serving}
        if backends := self._balancer.route_of(hints):
            in_turn = servers_in_turn(backends, by_name, hints.route_key)
            return by_name[in_turn[0]] if in_turn else None
        return next(iter(by_name.values()), None)

    def note_fallback(self, hints: RoutingHints, server: str) -> None:
        """Note that a request goes to this server. Start sleeping servers that come before it in
        the route, without waiting for them."""
        if not self._sleepers or not (backends := self._balancer.route_of(hints)):
            return
        last = min((each.priority for each in backends if each.server == server), default=-1)
        before = [each for each in backends if each.priority <= last]
        in_turn = servers_in_turn(before, {each.server for each in before}, hints.route_key)
        if absent := {sleeper.server for sleeper in self._sleepers} & set(in_turn) - {server}:
            absent -= {each.spec.server for each in self._balancer.upstreams}
            # Immediately the first time; later as often as for servers that are waited for.
            if absent - self._wanted - self._reported:
                self.rounds.request_run()
            self._wanted |= absent

    @contextmanager
    def _counted(self, server: str) -> Iterator[None]:
        if len(self) >= self._settings.queue_size:
            raise AllRowsBusy(f"{len(self)} requests wait for {server}; raise QUEUE_SIZE")
        self._wanted.add(server)
        if not self._waiting[server]:
            self.rounds.request_run()
        self._waiting[server] += 1
        try:
            yield
        finally:
            self._waiting[server] -= 1

    async def _ask(self) -> None:
        if (url := self._settings.cluster_url) is None:
            return
        wanted = self._wanted | {name for name, count in self._waiting.items() if count}
        self._reported, self._wanted = wanted, set()
        try:
            self._sleepers = await self._aside.run(report_wanted, url, wanted)
            self._note_fault("")
        except (FetchFailed, ValueError) as error:
            self._note_fault(str(error))
        self.look_again()

    def _note_fault(self, fault: str) -> None:
        if fault and not self._fault:
            log.warning("the controller says of no servers whether they sleep: %s", fault)
        self._fault = fault
