"""Ranks find each other, whoever else finds their ports."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from inference_api.pipeline.meeting import GREETING, INVITATION, JOIN, MAX_PENDING, Neighbours, meet
from inference_api.pipeline.ranks import RankSettings
from lab.kit.servers import TIMEOUT_S, eventually
from tests.ports import free_port


def ranks_of(port: int, rank: int, num_ranks: int = 3) -> RankSettings:
    return RankSettings(rank=rank, world_size=num_ranks, master_port=port)


class Meeting:
    """Ranks that look for their neighbours, each on a thread."""

    def __init__(self, port: int, pool: ThreadPoolExecutor, stack: ExitStack) -> None:
        self.port, self._pool, self._stack = port, pool, stack
        self.ranks: dict[int, Future[Neighbours]] = {}

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank] = self._pool.submit(meet, ranks_of(self.port, rank), TIMEOUT_S)

    def visit(self, *said: bytes) -> socket.socket:
        """Connects to rank 0, as soon as it listens."""

        def connect() -> socket.socket | None:
            try:
                return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
            except ConnectionRefusedError:
                return None

        visitor: socket.socket = self._stack.enter_context(eventually(connect))
        for each in said:
            visitor.sendall(each)
        return visitor

    def come(self, rank: int, num_ranks: int = 3) -> socket.socket:
        return self.visit(GREETING.pack(JOIN, rank, num_ranks, 9))

    def is_whole(self) -> bool:
        """What each says to the next is what that hears from it."""
        neighbours = [self.ranks[rank].result(TIMEOUT_S) for rank in sorted(self.ranks)]
        for rank, (onward, _) in enumerate(neighbours):
            onward.sendall(bytes([rank]))
        for each in neighbours:
            for connection in each:
                self._stack.enter_context(connection)
                connection.settimeout(TIMEOUT_S)
        heard = [previous.recv(9) for _, previous in neighbours]
        return heard == [b"\2", b"\0", b"\1"]


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        yield Meeting(free_port(), pool, stack)


def is_shown_out(visitor: socket.socket) -> bool:
    try:
        return visitor.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_ranks_find_their_neighbours_in_whatever_order_they_start(
    meeting: Meeting, order: tuple[int, ...]
) -> None:
    meeting.start(*order)
    assert meeting.is_whole()


@pytest.mark.parametrize(
    "said",
    [
        GREETING.pack(b"x" * 16, 1, 3, 9),
        GREETING.pack(JOIN, 1, 4, 9),
        GREETING.pack(JOIN, 0, 3, 9),
        GREETING.pack(JOIN, 3, 3, 9),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        bytes(1000),
    ],
)
def test_visitors_who_are_no_rank_are_shown_out(meeting: Meeting, said: bytes) -> None:
    meeting.start(0)
    assert is_shown_out(meeting.visit(said))
    meeting.start(1, 2)
    assert meeting.is_whole()


def test_silent_slow_and_hasty_visitors_hold_nobody_up(meeting: Meeting) -> None:
    meeting.start(0)
    meeting.visit()
    slow = meeting.visit(GREETING.pack(JOIN, 1, 3, 9)[:-1])
    meeting.visit(b"\0").close()
    meeting.start(1, 2)
    assert meeting.is_whole()
    assert is_shown_out(slow)


def test_of_many_silent_visitors_the_oldest_have_to_go(meeting: Meeting) -> None:
    meeting.start(0)
    silent = [meeting.visit() for _ in range(MAX_PENDING + 1)]
    assert is_shown_out(silent[0])
    meeting.start(1, 2)
    assert meeting.is_whole()


def test_a_rank_that_comes_twice_is_refused(meeting: Meeting) -> None:
    meeting.start(0)
    first = meeting.come(1)
    # Rank 0 has let the first in before it reads what came behind it.
    assert is_shown_out(meeting.come(1))
    first.close()
    meeting.start(1, 2)
    assert meeting.is_whole()


def test_a_rank_that_is_gone_again_leaves_its_place_to_the_next(meeting: Meeting) -> None:
    meeting.start(0)
    for _ in range(3):
        meeting.come(2).close()
    meeting.start(1, 2)
    assert meeting.is_whole()


def test_a_rank_that_comes_late_is_refused(meeting: Meeting) -> None:
    meeting.start(0, 1, 2)
    assert meeting.is_whole()
    with pytest.raises(TimeoutError, match="rank 1 is not let in"):
        meet(ranks_of(meeting.port, 1), 0.01)


def test_only_the_neighbour_of_this_meeting_is_let_in(meeting: Meeting) -> None:
    """Rank 1 is this test: it knows its neighbours' ports, and others try them first."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        meeting.start(0)
        place = meeting.visit(GREETING.pack(JOIN, 1, 3, own.getsockname()[1]))
        meeting.start(2)
        _, name, host, port = INVITATION.unpack(place.recv(INVITATION.size, socket.MSG_WAITALL))
        address = host.rstrip(b"\0").decode(), port
        wrong = (
            GREETING.pack(bytes(16), 1, 3, 0),  # of an older meeting
            GREETING.pack(name, 0, 3, 0),
            GREETING.pack(JOIN, 1, 3, 9),
            b"\n" * 100,
        )
        for said in wrong:
            with socket.create_connection(address, TIMEOUT_S) as stranger:
                stranger.sendall(said)
                assert is_shown_out(stranger)
        onward = socket.create_connection(address, TIMEOUT_S)
        onward.sendall(GREETING.pack(name, 1, 3, 0))
        previous, _ = own.accept()
        assert previous.recv(GREETING.size, socket.MSG_WAITALL) == GREETING.pack(name, 0, 3, 0)
        done: Future[Neighbours] = Future()
        done.set_result((onward, previous))
        meeting.ranks[1] = done
        assert meeting.is_whole()


def test_names_of_meetings_are_never_the_same(meeting: Meeting) -> None:
    names = set()
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(meet, ranks_of(meeting.port, 0, 2), TIMEOUT_S)
            with socket.create_server(("127.0.0.1", 0)) as own:
                place = meeting.visit(GREETING.pack(JOIN, 1, 2, own.getsockname()[1]))
                _, name, _, port = INVITATION.unpack(
                    place.recv(INVITATION.size, socket.MSG_WAITALL)
                )
                with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as onward:
                    onward.sendall(GREETING.pack(name, 1, 2, 0))
                    for each in (*first.result(TIMEOUT_S), own.accept()[0]):
                        each.close()
            names.add(name)
    assert len(names) == 3


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n" * 9, b"\xff" * 200, b"x", b""])
def test_who_else_listens_at_the_meeting_place_is_no_rank(said: bytes) -> None:
    """However much it says: a rank goes on looking for rank 0, until it is too late."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        rank = pool.submit(meet, ranks_of(port, 1), 0.3)
        server.settimeout(TIMEOUT_S)
        while not rank.done():
            with suppress(TimeoutError):
                visitor, _ = server.accept()
                with visitor:
                    visitor.recv(GREETING.size, socket.MSG_WAITALL)
                    visitor.sendall(said)
            server.settimeout(0.1)
        with pytest.raises(TimeoutError, match="rank 1 is not let in"):
            rank.result(0)
