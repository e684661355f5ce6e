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

import numpy as np

from inference_api.pipeline.ranks import RankSettings

logger = logging.getLogger(__name__)

GREETING = Struct(">16sHHH")  # JOIN or the meeting's name; rank, number of ranks, port of the rank
JOIN = b"hearth meeting 1"
INVITATION = Struct(">16s16s46sH")  # JOIN, the meeting's name, host and port of the next neighbour
LINK_TIMEOUT_S = 30.0  # timeout to connect to both neighbours, from the invitation on
RETRY_S = 0.2
MAX_PENDING = 64  # most connections without a complete greeting; one more closes the oldest

Neighbours = tuple[socket.socket, socket.socket]  # the next and the previous one


def meet(ranks: RankSettings, timeout_s: float) -> Neighbours:
    """Returns connections to the neighbours once all ranks have come. Raises OSError."""
    until_s = time.monotonic() + timeout_s
    if ranks.rank == 0:
        with _Listener(ranks.meeting_place) as listener:
            return _host(listener, ranks, until_s)
    while True:
        try:
            return _join(ranks, until_s)
        except OSError as error:  # rank 0 does not listen yet, or refuses this rank
            if time.monotonic() >= until_s:
                raise TimeoutError(f"rank {ranks.rank} is not let in: {error}") from error
        time.sleep(RETRY_S)


def _host(listener: "_Listener", ranks: RankSettings, until_s: float) -> Neighbours:
    members = _joined(listener, ranks, until_s)
    with ExitStack() as stack:
        for member, _ in members:
            stack.enter_context(member)
        places = [(member.getpeername()[0], port) for member, port in members]
        places.append((members[-1][0].getsockname()[0], listener.port))
        name = os.urandom(16)
        for (member, _), (host, port) in zip(members, places[1:], strict=True):
            member.settimeout(LINK_TIMEOUT_S)
            member.sendall(INVITATION.pack(JOIN, name, host.encode(), port))
    return _linked(name, places[0], listener, ranks)


def _joined(
    listener: "_Listener", ranks: RankSettings, until_s: float
) -> Sequence[tuple[socket.socket, int]]:
    """Wait for all ranks except rank 0. Returns their connections and ports, by ascending rank."""
    members: dict[int, tuple[socket.socket, int]] = {}
    for connection, greeting in listener.arrivals(until_s):
        word, rank, num_ranks, port = GREETING.unpack(greeting)
        for left in [each for each, (member, _) in members.items() if not _is_connected(member)]:
            members.pop(left)[0].close()
        is_expected = 0 < rank < num_ranks == ranks.world_size and rank not in members
        if word != JOIN or not is_expected:
            if word == JOIN:
                logger.warning("refused rank %d of %d", rank, num_ranks)
            connection.close()
            continue
        members[rank] = connection, port
        if len(members) == num_ranks - 1:
            return [members[each] for each in sorted(members)]
    for member, _ in members.values():
        member.close()
    missing = sorted({*range(1, ranks.world_size)} - {*members})
    raise TimeoutError(f"ranks that have not come: {', '.join(map(str, missing))}")


def _join(ranks: RankSettings, until_s: float) -> Neighbours:
    with (
        socket.create_connection(ranks.meeting_place, _left_s(until_s)) as first,
        _Listener((first.getsockname()[0], 0)) as listener,
    ):
        if first.getsockname() == first.getpeername():
            raise ConnectionError("TCP took the port itself, as nobody listens yet")
        first.sendall(GREETING.pack(JOIN, ranks.rank, ranks.world_size, listener.port))
        word, name, host, port = INVITATION.unpack(received(first, INVITATION.size, until_s))
        if word != JOIN:
            raise ConnectionError("somebody else listens there")
        return _linked(name, (host.rstrip(b"\0").decode(), port), listener, ranks)


def _linked(
    name: bytes, next_place: tuple[str, int], listener: "_Listener", ranks: RankSettings
) -> Neighbours:
    """Connect to the next neighbour, and wait for the previous one."""
    until_s, num_ranks = time.monotonic() + LINK_TIMEOUT_S, ranks.world_size
    next_connection = socket.create_connection(next_place, LINK_TIMEOUT_S)
    try:
        next_connection.sendall(GREETING.pack(name, ranks.rank, num_ranks, 0))
        expected = GREETING.pack(name, (ranks.rank - 1) % num_ranks, num_ranks, 0)
        for connection, greeting in listener.arrivals(until_s):
            if greeting == expected:
                return next_connection, connection
            connection.close()
        raise TimeoutError(f"the neighbour before rank {ranks.rank} has not come")
    except BaseException:
        next_connection.close()
        raise


def _is_connected(member: socket.socket) -> bool:
    try:
        return member.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def received(connection: socket.socket, num_bytes: int, until_s: float) -> memoryview:
    """Returns the next `num_bytes` bytes of a connection, in new memory. Raises OSError."""
    content = rest = np.empty(num_bytes, np.uint8).data
    while rest:
        connection.settimeout(_left_s(until_s))
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("it has left")
        rest = rest[count:]
    return content


def _left_s(until_s: float) -> float:
    return max(0.001, until_s - time.monotonic())


class _Listener:
    """A listening port. Each connection to it sends one GREETING. For one thread."""

    def __init__(self, place: tuple[str, int]) -> None:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._socket = socket.create_server(place, family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._selector = DefaultSelector()
        self._selector.register(self._socket, EVENT_READ)
        self._partial: dict[socket.socket, bytes] = {}  # incomplete greetings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._socket.close()
        for connection in self._partial:
            connection.close()

    def arrivals(self, until_s: float) -> Iterator[tuple[socket.socket, bytes]]:
        """Yields each connection with its greeting once it is complete, until the timeout. Slow or
        silent connections delay no others."""
        while time.monotonic() < until_s:
            for key, _ in self._selector.select(_left_s(until_s)):
                if key.fileobj is self._socket:
                    self._accept()
                elif greeting := self._read_greeting(key.data):
                    yield key.data, greeting

    def _accept(self) -> None:
        with suppress(OSError):  # the other side has left again
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            self._partial[connection] = b""
            self._selector.register(connection, EVENT_READ, connection)
        if len(self._partial) > MAX_PENDING:
            oldest = next(iter(self._partial))
            self._forget(oldest)
            oldest.close()

    def _read_greeting(self, connection: socket.socket) -> bytes:
        """Returns the greeting of a connection once it is complete, and stops watching it."""
        begun = self._partial.get(connection)
        if begun is None:  # the connection was closed to make room
            return b""
        try:
            more = connection.recv(GREETING.size - len(begun))
        except BlockingIOError:
            return b""
        except OSError:
            more = b""
        self._partial[connection] = begun + more
        if more and len(begun + more) < GREETING.size:
            return b""
        self._forget(connection)
        if not more:
            connection.close()
            return b""
        return begun + more

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._partial[connection]
