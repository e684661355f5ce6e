"""Who has to go when too many connections wait. Real sockets; turns are taken one by one."""

import os
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import ThreadWorker
from hypothesis import given
from hypothesis import strategies as st

from common.connections.waiting import PolledConnection
from common.connections.worker import ConnectionLimits, PollingWorker, polling_worker

BOUND = 4
DEADLINE_S = 60.0
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
# Larger than what is received at a time.
BYTES = {"silent": b"", "begun": HEAD[:9], "half": HEAD + bytes(9), "whole": HEAD + bytes(200_000)}


class Pool:
    """Reads whole requests. A test says when they are answered."""

    def __init__(self) -> None:
        self.taken: list[PolledConnection] = []
        self.answers: list[Future[bool]] = []

    def submit(self, handle: object, conn: PolledConnection) -> Future[bool]:
        body = next(conn.parser).body
        assert body is not None
        body.read()
        self.taken.append(conn)
        self.answers.append(Future())
        return self.answers[-1]


@contextmanager
def bounded_worker(
    max_connections: int, grace_s: float = 0.0
) -> Iterator[tuple[PollingWorker, Pool, ExitStack]]:
    """A worker, its pool, and what closes the clients' sockets."""
    config: Any = Config()
    config.set("worker_connections", max_connections)
    limits = ConnectionLimits(1_000_000, max_waiting_per_address=BOUND, grace_s=grace_s)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        none: Any = None  # no application and no log is asked for anything
        worker = polling_worker(limits)(0, os.getppid(), [listener], none, 30, config, none)
        with mock.patch.object(ThreadWorker, "run"):
            worker.run()  # makes what it works with
        pool: Any = Pool()
        worker.tpool = pool
        worker.poller = stack.enter_context(selectors.DefaultSelector())
        queue: Any = worker.method_queue
        queue.init()
        worker.poller.register(queue.fileno(), selectors.EVENT_READ, queue.run_callbacks)
        stack.callback(queue.close)
        stack.callback(worker.tmp.close)
        worker.set_accept_enabled(True)
        yield worker, pool, stack
        worker.murder_keepalived(force=True)
        for conn in pool.taken:
            conn.close()


def connect(worker: PollingWorker, stack: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    (listener,) = worker.sockets
    client = socket.create_connection(listener.getsockname(), DEADLINE_S, (host, 0))
    return stack.enter_context(client)


def answer_to(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@given(kinds=st.lists(st.sampled_from(sorted(BYTES)), max_size=12), is_in_time=st.booleans())
def test_whole_requests_are_served_and_who_is_one_too_many_is_told(
    kinds: list[str], is_in_time: bool
) -> None:
    """Whether the bytes have come when a connection is accepted, or before it has to go."""
    with bounded_worker(max_connections=100) as (worker, pool, stack):
        clients = [connect(worker, stack) for _ in kinds]
        if not is_in_time:
            worker.wait_for_and_dispatch_events(0)
        for client, kind in zip(clients, kinds, strict=True):
            client.sendall(BYTES[kind])
        if is_in_time:
            worker.wait_for_and_dispatch_events(0)
        worker.murder_keepalived()
        waiting = [client for client, kind in zip(clients, kinds, strict=True) if kind != "whole"]
        for client in waiting[: max(0, len(waiting) - BOUND)]:
            answer = answer_to(client)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: 1\r\n" in answer
        while len(pool.taken) < kinds.count("whole"):  # those of a few waiters are read in turn
            worker.wait_for_and_dispatch_events(DEADLINE_S)


@pytest.mark.parametrize("kind", ["whole", "begun"])
def test_where_places_are_few_no_whole_request_loses_its_own(kind: str) -> None:
    with bounded_worker(max_connections=3) as (worker, pool, stack):
        first = connect(worker, stack)
        worker.wait_for_and_dispatch_events(0)
        first.sendall(BYTES[kind])
        second = connect(worker, stack)
        connect(worker, stack)
        worker.accept(worker.sockets[0])
        told = second if kind == "whole" else first
        assert answer_to(told).startswith(b"HTTP/1.1 503 ")
        assert len(pool.taken) == (kind == "whole")


def test_answered_connection_makes_room_and_a_new_one_keeps_its_place() -> None:
    with bounded_worker(max_connections=2) as (worker, pool, stack):
        first = connect(worker, stack)
        first.sendall(BYTES["whole"])
        while not pool.taken:
            worker.wait_for_and_dispatch_events(DEADLINE_S)
        second = connect(worker, stack)
        worker.wait_for_and_dispatch_events(DEADLINE_S)
        worker.murder_keepalived()
        assert worker.nr_conns == 2
        pool.answers[0].set_result(True)  # it is kept alive
        worker.wait_for_and_dispatch_events(DEADLINE_S)
        worker.murder_keepalived()
        assert answer_to(first) == b""
        second.sendall(BYTES["whole"])
        while len(pool.taken) < 2:
            worker.wait_for_and_dispatch_events(DEADLINE_S)


def test_connections_that_come_at_once_have_a_moment_unless_others_need_the_place() -> None:
    with bounded_worker(max_connections=2 * BOUND, grace_s=3600) as (worker, pool, stack):
        other = connect(worker, stack, "127.0.0.2")
        many = [connect(worker, stack) for _ in range(BOUND + 2)]
        worker.wait_for_and_dispatch_events(DEADLINE_S)
        worker.murder_keepalived()
        assert worker.nr_conns == BOUND + 3
        connect(worker, stack, "127.0.0.3")
        worker.wait_for_and_dispatch_events(DEADLINE_S)
        assert answer_to(many[0]).startswith(b"HTTP/1.1 503 ")
        for client in (other, *many[1:]):
            client.sendall(BYTES["whole"])
        while len(pool.taken) < BOUND + 2:
            worker.wait_for_and_dispatch_events(DEADLINE_S)
