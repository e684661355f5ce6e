"""Generations give back all they took, whatever fails in their beginning or their end."""

from collections.abc import Callable

import pytest

from inference_api.core import generations as streaming
from inference_api.errors import ContextTooLong, InvalidRequest, QueueFull
from inference_api.request import Caller, GenerationParams
from tests.inference_api.core.test_session_reuse import NAME, Server

PARAMS = GenerationParams()


def fail(*given: object) -> None:
    raise RuntimeError("of this test")


def nothing_is_left(server: Server) -> bool:
    server.backend.step()
    is_empty = not (len(server.output_queues) or len(server.input_queue))
    return is_empty and server.backend.users == [None, None]


@pytest.mark.parametrize("part", ["TextStream", "StopMatcher", "request_of", "TextGeneration"])
def test_nothing_is_left_of_a_request_that_is_not_made(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setattr(streaming, part, fail)
    with pytest.raises(RuntimeError):
        server.begin("alpha")
    assert nothing_is_left(server)


@pytest.mark.parametrize("part", ["queued", "watched"])
def test_nothing_is_left_of_a_request_that_is_not_queued_or_not_watched(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    if part == "queued":
        monkeypatch.setattr(server.input_queue, "put", fail)
    else:
        monkeypatch.setattr(server.watcher, "watch", fail)
    with pytest.raises(RuntimeError):
        server.begin("alpha")
    assert nothing_is_left(server)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_end_that_fails_skips_no_other(at: int) -> None:
    server, done = Server(), list[int]()
    generation = server.begin("alpha")
    server.backend.step()

    def end(number: int) -> Callable[[], None]:
        return lambda: fail() if number == at else done.append(number)

    for number in range(3):
        generation.at_end(end(number))
    with pytest.raises(RuntimeError):
        generation.close()
    assert done == [number for number in (2, 1, 0) if number != at]
    assert nothing_is_left(server)
    generation.close()  # there is nothing to do


def test_prompts_before_one_that_is_refused_are_ended_and_noted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four may wait beside two rows. The last call has two prompts, and its caller hangs up while
    the second waits for room."""
    server = Server()
    for _ in range(5):
        server.begin("alpha")
    monkeypatch.setattr(server.input_queue, "wait_for_room", lambda *_: server.watcher.hang_up())
    monkeypatch.setattr(server.input_queue, "remove", lambda request: None)  # there is still none
    caller = Caller("request", connection=server.connection)
    with pytest.raises(QueueFull), server.generations.admitted(NAME, caller) as admitted:
        server.generations.begin(admitted, [([1], PARAMS)] * 2)
    assert len(server.output_queues) == 5
    (noted,) = server.recent.newest_first()
    assert (noted.status, noted.error) == (503, "queue_full")


def test_no_prompt_of_a_call_is_queued_when_one_does_not_fit() -> None:
    server = Server()
    with server.generations.admitted(NAME, Caller("request")) as admitted:
        with pytest.raises(ContextTooLong):
            server.generations.begin(admitted, [([1], PARAMS), ([1] * 64, PARAMS)])
        with pytest.raises(InvalidRequest, match="no tokens"):
            server.generations.begin(admitted, [([], PARAMS)])
    assert not len(server.input_queue)
    assert nothing_is_left(server)
