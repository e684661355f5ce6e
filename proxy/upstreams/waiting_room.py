"""The queue of requests while all user rows are busy: teams take turns, and within a team it is
first come, first served. Event loop only.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from proxy.clients.inbound import InboundRequest
from proxy.errors import AllRowsBusy, ProxyError
from proxy.upstreams.balancer import Upstream

# How many further requests of a team are tried, because the first may need a busy model.
MAX_LOOKED_AT = 16

Choose = Callable[[InboundRequest, AbstractSet[Upstream]], Upstream]


@dataclass(slots=True, eq=False)
class _Guest:
    request: InboundRequest
    tried: AbstractSet[Upstream]
    upstream: asyncio.Future[Upstream] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class WaitingRoom:
    """A waiting request. `choose` returns an upstream, and counts the request in, or raises."""

    def __init__(
        self, choose: Choose, give_back: Callable[[Upstream], None], max_waiting: int
    ) -> None:
        self._choose = choose
        self._give_back = give_back
        self._max_waiting = max_waiting
        self._lanes: OrderedDict[str, deque[_Guest]] = OrderedDict()
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    async def enter(
        self, request: InboundRequest, tried: AbstractSet[Upstream], deadline_s: float
    ) -> Upstream:
        """Wait for a row until a time of the loop's clock. Raises AllRowsBusy if none comes free or
        too many wait, and errors of `choose` if waiting does not help.
        """
        if self._num_waiting >= self._max_waiting:
            raise AllRowsBusy(f"{self._num_waiting} requests wait; raise QUEUE_SIZE or add servers")
        guest = _Guest(request, tried)
        self._lanes.setdefault(request.team_id, deque()).append(guest)
        self._num_waiting += 1
        self.admit()
        try:
            async with asyncio.timeout_at(deadline_s):
                return await guest.upstream
        except BaseException as error:
            self._see_off(guest)
            if isinstance(error, TimeoutError):
                raise AllRowsBusy("no row came free within QUEUE_TIMEOUT") from error
            raise

    def admit(self) -> None:
        """Give free rows to the teams' requests in turn. Called when a row may be free."""
        num_refused_lanes = 0
        while self._lanes and num_refused_lanes < len(self._lanes):
            team_id = next(iter(self._lanes))
            num_refused_lanes = 0 if self._admit_one(team_id) else num_refused_lanes + 1
            if team_id in self._lanes:
                self._lanes.move_to_end(team_id)

    def _admit_one(self, team_id: str) -> bool:
        """Returns whether one of a team's first requests got a row or an error."""
        for guest in list(self._lanes[team_id])[:MAX_LOOKED_AT]:
            if guest.upstream.cancelled():  # the request is about to leave
                continue
            try:
                upstream = self._choose(guest.request, guest.tried)
            except AllRowsBusy:
                continue
            except ProxyError as error:
                guest.upstream.set_exception(error)
            else:
                guest.upstream.set_result(upstream)
            self._remove(guest)
            return True
        return False

    def _see_off(self, guest: _Guest) -> None:
        """Remove a request that no longer waits, and release a row that came too late."""
        if not guest.upstream.done() or guest.upstream.cancelled():
            self._remove(guest)
        elif guest.upstream.exception() is None:
            self._give_back(guest.upstream.result())

    def _remove(self, guest: _Guest) -> None:
        lane = self._lanes[guest.request.team_id]
        lane.remove(guest)
        self._num_waiting -= 1
        if not lane:
            del self._lanes[guest.request.team_id]
