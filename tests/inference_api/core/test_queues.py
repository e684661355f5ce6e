"""The two queues between request threads and the decode thread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.errors import Draining, QueueFull
from inference_api.inference_api_server import create_server, server_of
from inference_api.request import (
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SessionId,
    TokenEvent,
)
from inference_api.settings import Settings

NAME = "m"
NO_ROWS = {NAME: 0}


def request(name: str, priority: int = 0, model: str = NAME) -> GenerationRequest:
    output = OutputQueue(SessionId(name), model)
    return GenerationRequest(output, model, (1, 2, 3), GenerationParams(priority=priority))


def name_of(request: GenerationRequest | None) -> str | None:
    return None if request is None else request.output.session_id


def test_first_come_first_served() -> None:
    queue = InputQueue(3, NO_ROWS)
    requests = [request(name) for name in "abc"]
    for each in requests:
        queue.put(each)
    assert [queue.get(NAME) for _ in range(4)] == [*requests, None]


def test_lower_priority_leaves_earlier_but_nobody_waits_for_ever() -> None:
    now_s = 0.0
    queue = InputQueue(100, NO_ROWS, clock=lambda: now_s)
    queue.put(request("plain"))
    queue.put(request("patient", priority=2))
    served = []
    for turn in range(8):  # an urgent request every five seconds, and time for one
        now_s = 5.0 * turn
        queue.put(request(f"urgent {turn}", priority=-1))
        served.append(name_of(queue.get(NAME)))
    assert served[:4] == ["urgent 0", "urgent 1", "plain", "urgent 2"]
    assert "patient" in served


def test_equal_priorities_are_served_as_they_came() -> None:
    queue = InputQueue(9, NO_ROWS, clock=lambda: 0.0)
    for name in "abc":
        queue.put(request(name, priority=3))
    queue.put(request("d", priority=2))
    order = [queue.get(NAME) for _ in range(4)]
    assert [name_of(each) for each in order] == ["d", "a", "b", "c"]


def test_full_queue_refuses_with_a_time_from_the_measured_drain_rate() -> None:
    now_s = 0.0
    queue = InputQueue(4, NO_ROWS, clock=lambda: now_s)
    for number in range(10):
        now_s = 2.0 * number  # one request leaves every two seconds
        queue.put(request(str(number)))
        queue.get(NAME)
    for name in "abcd":
        queue.put(request(name))
    with pytest.raises(QueueFull) as caught:
        queue.put(request("e"))
    assert caught.value.retry_after_s == 8
    with pytest.raises(QueueFull):
        queue.check_room(NAME)


def test_burst_fills_the_free_rows_and_the_queue() -> None:
    queue = InputQueue(4, {NAME: 32})
    for number in range(36):
        queue.put(request(str(number)))
    for _ in range(32):  # into the rows: that makes no room
        queue.get(NAME)
        with pytest.raises(QueueFull):
            queue.check_room(NAME)
    queue.row_is_free(NAME)
    queue.put(request("next"))
    with pytest.raises(QueueFull):
        queue.put(request("one too many"))


@pytest.mark.parametrize("shared_rows", [None, 2])
def test_all_but_the_first_of_a_call_leave_half_of_the_places(shared_rows: int | None) -> None:
    queue = InputQueue(4, {NAME: 2}, shared_rows=shared_rows)

    def put_all() -> int:
        """How many find room: two rows are free at first."""
        for count in range(9):
            try:
                queue.put(request(str(count)), is_first=False)
            except QueueFull:
                return count
        return pytest.fail("no bound")

    assert put_all() == 4
    for newcomer in "ab":
        queue.put(request(newcomer))
    with pytest.raises(QueueFull):
        queue.put(request("c"))
    for _ in range(2):  # into the rows, which come free again
        queue.get(NAME)
        queue.row_is_free(NAME)
    assert put_all() == 0
    queue.put(request("c"))


def test_one_place_is_enough_for_a_call_of_many() -> None:
    queue = InputQueue(1, {NAME: 1})
    queue.put(request("first"))
    for _ in range(3):
        with pytest.raises(QueueFull):
            queue.put(request("next"), is_first=False)
        queue.get(NAME)
        queue.row_is_free(NAME)
        queue.put(request("next"), is_first=False)


def test_each_model_has_a_line_and_places_of_its_own() -> None:
    queue = InputQueue(1, {"a": 1, "b": 2})
    requests = [request(name, model=name[0]) for name in ("a1", "a2", "b1", "b2", "b3")]
    for each in requests:
        queue.put(each)
    for model in ("a", "b"):
        with pytest.raises(QueueFull):
            queue.check_room(model)
    assert (queue.num_waiting("a"), queue.num_waiting("b"), len(queue)) == (2, 3, 5)
    assert name_of(queue.get("b")) == "b1"
    queue.row_is_free("b")
    queue.check_room("b")
    with pytest.raises(QueueFull):
        queue.check_room("a")
    queue.remove(requests[0])
    queue.check_room("a")


def test_server_has_room_for_its_rows_and_its_queue() -> None:
    backend = server_of(create_server(Settings(user_rows=3, max_input_qsize=2))).backend
    for number in range(3 + 2):
        backend.input_queue.put(request(str(number), model="hearth-tiny"))
    with pytest.raises(QueueFull):
        backend.input_queue.put(request("one too many", model="hearth-tiny"))


def test_removed_request_makes_room_wherever_it_stood() -> None:
    queue = InputQueue(2, NO_ROWS)
    a, b, c = (request("of the same name") for _ in range(3))
    queue.put(a)
    queue.put(b)
    queue.remove(a)
    queue.remove(a)  # it has gone
    queue.put(c)
    assert [queue.get(NAME), queue.get(NAME)] == [b, c]


def test_closed_queue_refuses_newcomers_and_keeps_the_waiting() -> None:
    queue = InputQueue(2, NO_ROWS)
    queue.put(waiting := request("a"))
    queue.refuse(lambda: Draining("soon", retry_after_s=1))
    with pytest.raises(Draining):
        queue.put(request("b"))
    assert queue.get(NAME) is waiting


@given(st.lists(st.sampled_from(["put", "get", "remove"]), max_size=60), st.integers(1, 5))
def test_queue_never_exceeds_its_size_and_loses_nothing(actions: list[str], size: int) -> None:
    queue, expected = InputQueue(size, NO_ROWS), list[GenerationRequest]()
    for action in actions:
        if action == "put" and len(expected) < size:
            expected.append(request("of the same name"))
            queue.put(expected[-1])
        elif action == "put":
            with pytest.raises(QueueFull):
                queue.put(request("of the same name"))
        elif action == "get":
            assert queue.get(NAME) is (expected.pop(0) if expected else None)
        elif expected:
            queue.remove(expected.pop(len(expected) // 2))
        assert len(queue) == len(expected)


def test_wanted_session_id_is_given_once() -> None:
    queues = OutputQueues()
    first, second = queues.open(NAME, "mine"), queues.open(NAME, "mine")
    assert first.session_id == "mine"
    assert second.session_id != "mine"
    queues.close(first)
    assert queues.open(NAME, "mine").session_id == "mine"


def test_events_come_in_order_and_what_ends_all_reaches_who_is_open() -> None:
    queues = OutputQueues()
    open_, closed = queues.open(NAME), queues.open(NAME)
    open_.put(TokenEvent((1,)))
    queues.close(closed)
    queues.put_to_all(TokenEvent((), FinishReason.ERROR))
    assert [open_.get(0.0), open_.get(0.0)] == [
        TokenEvent((1,)),
        TokenEvent((), FinishReason.ERROR),
    ]
    assert closed.get(0.0) is None
    assert (closed.is_closed, len(queues)) == (True, 1)
