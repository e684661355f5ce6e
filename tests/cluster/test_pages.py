"""Pages of replicas that answer, and of everything else that may listen at an address."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from cluster.config import ProxyKeys
from cluster.controller import pages
from cluster.controller.pages import PageReader
from cluster.engines import Counters
from cluster.errors import MetricsUnread
from cluster.replicas import Group, Replica, ReplicaState
from lab.kit.servers import eventually
from tests.ports import free_port

GROUP = Group("s", "A", 32)
PAGE = b"inference_rows_busy 1\ninference_queue_depth 2\n"
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

Answer = Callable[[socket.socket, Event], None]


@contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """A server that answers each connection so, until the end is told."""
    must_end, threads = Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def one(connection: socket.socket) -> None:
            with connection:
                connection.settimeout(30)
                try:
                    connection.recv(65536)
                    answer(connection, must_end)
                except OSError:
                    return  # the client has gone

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threads.append(Thread(target=one, args=(connection,), name="answer"))
                threads[-1].start()

        accepting = Thread(target=accept, name="accept")
        accepting.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            must_end.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in [accepting, *threads]:
                thread.join(timeout=60)


def sends(content: bytes) -> Answer:
    return lambda connection, _: connection.sendall(content)


def drips(connection: socket.socket, must_end: Event) -> None:
    connection.sendall(HEAD)
    while not must_end.wait(0.05):
        connection.sendall(b"#")


def floods(connection: socket.socket, must_end: Event) -> None:
    connection.sendall(HEAD)
    while not must_end.is_set():
        connection.sendall(b"# " + b"x" * 2**20 + b"\n")


def is_silent(connection: socket.socket, must_end: Event) -> None:
    must_end.wait(60)


@pytest.fixture
def reader() -> Iterator[PageReader]:
    reader = PageReader(None, clock=lambda: 7.0)
    yield reader
    reader.close()


def replica(url: str | None, name: str = "r", state: ReplicaState = ReplicaState.READY) -> Replica:
    return Replica(name, GROUP, state, url)


def test_all_replicas_are_read_side_by_side(reader: PageReader) -> None:
    with listening(sends(HEAD + PAGE)) as url:
        names = [f"r{number}" for number in range(40)]
        found = reader.read([replica(url, name) for name in names])
    assert found == {name: Counters(7.0, running=1, waiting=2) for name in names}


def test_those_that_start_or_failed_are_not_asked(reader: PageReader) -> None:
    others = [
        replica("http://127.0.0.1:1", f"{each}", each)
        for each in (ReplicaState.STARTING, ReplicaState.FAILED)
    ]
    assert reader.read([*others, replica(None)]) == {}


@pytest.mark.parametrize(
    "answer",
    [drips, floods, is_silent, sends(b""), sends(b"\x00" * 1000), sends(HEAD), sends(b"HTTP/1.1 "),
     sends(b"HTTP/1.1 500 No\r\n\r\n"), sends(b"HTTP/1.1 302 Go\r\nLocation: http://x/\r\n\r\n"),
     sends(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnot gzip"),
     sends(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + b"inference"),
     sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")],
)  # fmt: skip
def test_whatever_listens_there_is_told_apart_in_time(
    reader: PageReader, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READ_S", 0.5)
    with listening(answer) as url, listening(sends(HEAD + PAGE)) as sound:

        def are_told_apart() -> bool:
            found = reader.read([replica(url, "odd"), replica(sound, "sound")])
            assert isinstance(found["odd"], MetricsUnread)
            assert "of 2 replicas together" not in str(found["odd"]), "it is read in its own time"
            return isinstance(found["sound"], Counters)

        eventually(are_told_apart)  # on a busy machine a sound one may be late


def test_nobody_at_all_is_told(reader: PageReader) -> None:
    found = reader.read([replica(f"http://127.0.0.1:{free_port()}")])
    assert isinstance(found["r"], MetricsUnread)


def test_the_door_is_asked_with_its_token(tmp_path: Path) -> None:
    seen = []

    def answer(connection: socket.socket, _: Event) -> None:
        connection.sendall(HEAD + b"hearth_proxy_waiting 12\n")

    token = tmp_path / "token"
    token.write_text("secret\n")
    with listening(answer) as url:
        reader = PageReader(ProxyKeys(url=url, token_file=token))
        seen.append(reader.waiting_at_door())
        reader.close()
    assert seen == [12]


@pytest.mark.parametrize(
    "page", [PAGE, *(b"hearth_proxy_waiting %b\n" % each for each in (b"NaN", b"-1", b"+Inf"))]
)
def test_a_door_that_says_nothing_of_use_is_told(tmp_path: Path, page: bytes) -> None:
    with listening(sends(HEAD + page)) as url:
        for keys in (ProxyKeys(url=url), ProxyKeys(url=url, token_file=tmp_path / "none")):
            reader = PageReader(keys)
            with pytest.raises(MetricsUnread):
                reader.waiting_at_door()
            reader.close()
