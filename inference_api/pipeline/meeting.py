"""Connects each rank to its neighbours, also after a restart.

Rank 0 listens at the meeting address. Every other rank listens at a port of its own, connects to
rank 0, and sends its number and port. Once all have come, rank 0 sends each of them the name of
this meeting, which is new each time, and the address of its next neighbour. A rank accepts its
previous neighbour only with that name. A rank that comes late, twice, or from an older meeting is
therefore refused, and tries again until the timeout. Other connections to these ports do no harm.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from selectors import EVENT_READ, DefaultSelector
from struct import Struct
from typing import Self

from inference_api.pipeline.ranks import RankSettings

logger = logging.getLogger(__name__)

WORD = Struct(">16sHHH")  # COME or the meeting's name; rank, number of ranks, port of the rank
COME = b"hearth meeting 1"
INVITATION = Struct(">16s16s46sH")  # COME, the meeting's name, host and port of the next neighbour
LINK_TIMEOUT_S = 30.0  # timeout to connect to both neighbours, from the invitation on
COME_AGAIN_S = 0.2
MAX_VISITORS = 64  # most connections without a complete word; one more closes the oldest

Neighbours = tuple[socket.socket, socket.socket]  # the next and the previous one


def meet(ranks: RankSettings, timeout_s: float) -> Neighbours:
    """Returns connections to the neighbours once all ranks have come. Raises OSError."""
    until_s = time.monotonic() + timeout_s
    if ranks.rank == 0:
        with _Door(ranks.meeting_place) as door:
            return _hold(door, ranks, until_s)
    while True:
        try:
            return _come(ranks, until_s)
        except OSError as error:  # rank 0 does not listen yet, or refuses this rank
            if time.monotonic() >= until_s:
                raise TimeoutError(f"rank {ranks.rank} is not let in: {error}") from error
        time.sleep(COME_AGAIN_S)


def _hold(door: "_Door", ranks: RankSettings, until_s: float) -> Neighbours:
    guests = _guests(door, ranks, until_s)
    with ExitStack() as stack:
        for guest, _ in guests:
            stack.enter_context(guest)
        places = [(guest.getpeername()[0], port) for guest, port in guests]
        places.append((guests[-1][0].getsockname()[0], door.port))
        name = os.urandom(16)
        for (guest, _), (host, port) in zip(guests, places[1:], strict=True):
            guest.settimeout(LINK_TIMEOUT_S)
            guest.sendall(INVITATION.pack(COME, name, host.encode(), port))
    return _linked(name, places[0], door, ranks)


def _guests(
    door: "_Door", ranks: RankSettings, until_s: float
) -> Sequence[tuple[socket.socket, int]]:
    """Wait for all ranks except rank 0. Returns their connections and ports, by ascending rank."""
    guests: dict[int, tuple[socket.socket, int]] = {}
    for visitor, said in door.visitors(until_s):
        word, rank, num_ranks, port = WORD.unpack(said)
        for gone in [each for each, (guest, _) in guests.items() if not _is_there(guest)]:
            guests.pop(gone)[0].close()
        is_one = 0 < rank < num_ranks == ranks.world_size and rank not in guests
        if word != COME or not is_one:
            if word == COME:
                logger.warning("refused rank %d of %d", rank, num_ranks)
            visitor.close()
            continue
        guests[rank] = visitor, port
        if len(guests) == num_ranks - 1:
            return [guests[each] for each in sorted(guests)]
    for guest, _ in guests.values():
        guest.close()
    missing = sorted({*range(1, ranks.world_size)} - {*guests})
    raise TimeoutError(f"ranks that have not come: {', '.join(map(str, missing))}")


def _come(ranks: RankSettings, until_s: float) -> Neighbours:
    with (
        socket.create_connection(ranks.meeting_place, _left_s(until_s)) as first,
        _Door((first.getsockname()[0], 0)) as door,
    ):
        if first.getsockname() == first.getpeername():
            raise ConnectionError("TCP took the port itself, as nobody listens yet")
        first.sendall(WORD.pack(COME, ranks.rank, ranks.world_size, door.port))
        word, name, host, port = INVITATION.unpack(_received(first, INVITATION.size, until_s))
        if word != COME:
            raise ConnectionError("somebody else listens there")
        return _linked(name, (host.rstrip(b"\0").decode(), port), door, ranks)


def _linked(
    name: bytes, next_place: tuple[str, int], door: "_Door", ranks: RankSettings
) -> Neighbours:
    """Connect to the next neighbour, and wait for the previous one."""
    until_s, num_ranks = time.monotonic() + LINK_TIMEOUT_S, ranks.world_size
    onward = socket.create_connection(next_place, LINK_TIMEOUT_S)
    try:
        onward.sendall(WORD.pack(name, ranks.rank, num_ranks, 0))
        expected = WORD.pack(name, (ranks.rank - 1) % num_ranks, num_ranks, 0)
        for visitor, said in door.visitors(until_s):
            if said == expected:
                return onward, visitor
            visitor.close()
        raise TimeoutError(f"the neighbour before rank {ranks.rank} has not come")
    except BaseException:
        onward.close()
        raise


def _is_there(guest: socket.socket) -> bool:
    try:
        return guest.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _received(connection: socket.socket, num_bytes: int, until_s: float) -> bytes:
    received = b""
    while len(received) < num_bytes:
        connection.settimeout(_left_s(until_s))
        more = connection.recv(num_bytes - len(received))
        if not more:
            raise ConnectionError("refused")
        received += more
    return received


def _left_s(until_s: float) -> float:
    return max(0.001, until_s - time.monotonic())


class _Door:
    """A listening port. Each connection to it sends one WORD. For one thread."""

    def __init__(self, place: tuple[str, int]) -> None:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._listener = socket.create_server(place, family=family)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = DefaultSelector()
        self._selector.register(self._listener, EVENT_READ)
        self._said: dict[socket.socket, bytes] = {}  # incomplete words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._listener.close()
        for visitor in self._said:
            visitor.close()

    def visitors(self, until_s: float) -> Iterator[tuple[socket.socket, bytes]]:
        """Yields each connection with its word once that is complete, until the timeout. Slow or
        silent connections do not delay others."""
        while time.monotonic() < until_s:
            for key, _ in self._selector.select(_left_s(until_s)):
                if key.fileobj is self._listener:
                    self._let_in()
                elif said := self._heard(key.data):
                    yield key.data, said

    def _let_in(self) -> None:
        with suppress(OSError):  # the visitor has left again
            visitor, _ = self._listener.accept()
            visitor.setblocking(False)
            self._said[visitor] = b""
            self._selector.register(visitor, EVENT_READ, visitor)
        if len(self._said) > MAX_VISITORS:
            oldest = next(iter(self._said))
            self._forget(oldest)
            oldest.close()

    def _heard(self, visitor: socket.socket) -> bytes:
        """Returns the word of a connection once it is complete, and stops watching it."""
        said = self._said.get(visitor)
        if said is None:  # the connection was closed to make room
            return b""
        try:
            more = visitor.recv(WORD.size - len(said))
        except BlockingIOError:
            return b""
        except OSError:
            more = b""
        self._said[visitor] = said + more
        if more and len(said + more) < WORD.size:
            return b""
        self._forget(visitor)
        if not more:
            visitor.close()
            return b""
        return said + more

    def _forget(self, visitor: socket.socket) -> None:
        self._selector.unregister(visitor)
        del self._said[visitor]
