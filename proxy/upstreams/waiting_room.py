"""The queue of requests while all user rows are busy. Teams take turns, and a team's requests are
served first come, first served. A team has a line for each set of upstreams, so that requests for a
model that is busy, or being started, do not delay those for another. Event loop only.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter

from proxy.clients.inbound import InboundRequest, RoutingHints
from proxy.errors import AllRowsBusy, ProxyError
from proxy.upstreams.balancer import Upstream

# Requests of a line that are tried, because the first may have tried the free upstream already.
MAX_LOOKED_AT = 16


@dataclass(slots=True, eq=False)
class _Guest:
    number: int  # in order of arrival
    request: InboundRequest
    line: Hashable
    tried: AbstractSet[Upstream]
    upstream: asyncio.Future[Upstream] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(slots=True, eq=False)
class WaitingRoom:
    """`choose` returns an upstream with a free row and counts the request in, or raises. `line_of`
    returns a key for what a request waits for, which takes only a few values."""

    choose: Callable[[RoutingHints, AbstractSet[Upstream]], Upstream]
    give_back: Callable[[Upstream], None]
    line_of: Callable[[RoutingHints], Hashable]
    max_waiting: int
    _teams: OrderedDict[str, dict[Hashable, deque[_Guest]]] = field(default_factory=OrderedDict)
    _numbers: "count[int]" = field(default_factory=count)
    _num_waiting: int = 0

    def __len__(self) -> int:
        return self._num_waiting

    async def enter(
        self, request: InboundRequest, tried: AbstractSet[Upstream], deadline_s: float
    ) -> Upstream:
        """Wait for a row until a time of the loop's clock. Raises AllRowsBusy if none comes free or
        too many wait, and errors of `choose` if waiting does not help.
        """
        if self._num_waiting >= self.max_waiting:
            raise AllRowsBusy(f"{self._num_waiting} requests wait; raise QUEUE_SIZE or add servers")
        guest = _Guest(next(self._numbers), request, self.line_of(request.hints), tried)
        lines = self._teams.setdefault(request.team_id, {})
        lines.setdefault(guest.line, deque()).append(guest)
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
        num_refused = 0
        while self._teams and num_refused < len(self._teams):
            team_id = next(iter(self._teams))
            num_refused = 0 if self._admit_one(team_id) else num_refused + 1
            if team_id in self._teams:
                self._teams.move_to_end(team_id)

    def _admit_one(self, team_id: str) -> bool:
        """Returns whether one of the first requests of a team's lines got a row or an error."""
        lines = self._teams[team_id].values()
        first = [guest for line in lines for guest in islice(line, MAX_LOOKED_AT)]
        for guest in sorted(first, key=attrgetter("number")):
            if guest.upstream.cancelled():  # the request is about to leave
                continue
            try:
                upstream = self.choose(guest.request.hints, guest.tried)
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
            self.give_back(guest.upstream.result())

    def _remove(self, guest: _Guest) -> None:
        lines = self._teams[guest.request.team_id]
        lines[guest.line].remove(guest)
        self._num_waiting -= 1
        if not lines[guest.line]:
            del lines[guest.line]
        if not lines:
            del self._teams[guest.request.team_id]
