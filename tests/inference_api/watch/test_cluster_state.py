"""What a controller says, and what else may listen where one should."""

import socket
from collections.abc import Callable
from threading import Event, Thread

import pytest

from common.fetch import FetchBounds
from inference_api.errors import Unavailable
from inference_api.watch import cluster_state
from inference_api.watch.cluster_state import ClusterState
from tests.cluster.test_pages import HEAD, drips, floods, listening, sends

STATE = b'{"replicas": []}'


def test_its_state_is_told_and_shared_for_a_moment() -> None:
    now_s, asked = [100.0], []

    def answer(connection: socket.socket, _: Event) -> None:
        asked.append(1)
        connection.sendall(HEAD + STATE)

    with listening(answer) as url:
        cluster = ClusterState(f"{url}/", clock=lambda: now_s[0])
        assert cluster.read().state == {"replicas": []}
        now_s[0] += 0.5
        assert cluster.read().age_s == 0.5
        assert len(asked) == 1
        now_s[0] += 1
        assert cluster.read().age_s == 0
        assert len(asked) == 2


@pytest.mark.parametrize(
    "answer",
    [drips, floods, sends(b""), sends(HEAD + b"[]"), sends(HEAD + b"nothing"),
     sends(HEAD + b"[" * 100_000), sends(HEAD + b'{"a": NaN}'), sends(HEAD + b"\xff{}"),
     sends(HEAD + b'{"a": ' + b"9" * 5000 + b"}"),
     sends(b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\n\r\n")],
)  # fmt: skip
def test_anything_else_is_unavailable(
    answer: Callable[[socket.socket, Event], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = FetchBounds(connect_s=1.0, read_s=0.3, max_bytes=2**20)
    monkeypatch.setattr(cluster_state, "BOUNDS", bounds)
    with listening(answer) as url, pytest.raises(Unavailable, match="cannot be read"):
        ClusterState(url).read()


def test_a_silent_controller_holds_one_thread_and_no_other() -> None:
    was_asked, may_answer = Event(), Event()

    def answer(connection: socket.socket, _: Event) -> None:
        was_asked.set()
        may_answer.wait(60)
        connection.sendall(HEAD + STATE)

    with listening(answer) as url:
        cluster = ClusterState(url)
        first = Thread(target=cluster.read)
        first.start()
        assert was_asked.wait(60)
        with pytest.raises(Unavailable, match="not answered yet"):
            cluster.read()
        may_answer.set()
        first.join(60)
        assert cluster.read().state == {"replicas": []}
