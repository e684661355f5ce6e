"""The two queues between request threads and the decode thread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.errors import Draining, QueueFull
from inference_api.inference_api_server import create_server, server_of
from inference_api.request import FinishReason, GenerationRequest, SessionId, TokenEvent
from inference_api.scheduling.input_queue import InputQueue
from inference_api.scheduling.output_queues import OutputQueues
from inference_api.settings import Settings

NAME = "m"
NO_ROWS = {NAME: 0}


def request(name: str, priority: int = 0, model: str = NAME) -> GenerationRequest:
    return GenerationRequest(SessionId(name), model, (1, 2, 3), max_tokens=4, priority=priority)


def test_first_come_first_served() -> None:
    queue = InputQueue(3, NO_ROWS)
    for name in "abc":
        queue.put(request(name))
    assert [queue.get(NAME) for _ in range(4)] == [request("a"), request("b"), request("c"), None]


def test_lower_priority_leaves_earlier_but_nobody_waits_for_ever() -> None:
    now_s = 0.0
    queue = InputQueue(100, NO_ROWS, clock=lambda: now_s)
    queue.put(request("plain"))
    queue.put(request("patient", priority=2))
    served = []
    for turn in range(8):  # an urgent request every five seconds, and time for one
        now_s = 5.0 * turn
        queue.put(request(f"urgent {turn}", priority=-1))
        served.append(str(getattr(queue.get(NAME), "session_id", None)))
    assert served[:4] == ["urgent 0", "urgent 1", "plain", "urgent 2"]
    assert "patient" in served


def test_equal_priorities_are_served_as_they_came() -> None:
    queue = InputQueue(9, NO_ROWS, clock=lambda: 0.0)
    for name in "abc":
        queue.put(request(name, priority=3))
    queue.put(request("d", priority=2))
    order = [queue.get(NAME) for _ in range(4)]
    assert [each.session_id for each in order if each] == ["d", "a", "b", "c"]


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


def test_each_model_has_a_line_and_places_of_its_own() -> None:
    queue = InputQueue(1, {"a": 1, "b": 2})
    for name, model in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b")):
        queue.put(request(name, model=model))
    for model in ("a", "b"):
        with pytest.raises(QueueFull):
            queue.check_room(model)
    assert (queue.num_waiting("a"), queue.num_waiting("b"), len(queue)) == (2, 3, 5)
    taken = queue.get("b")
    assert taken is not None
    assert taken.session_id == "b1"
    queue.row_is_free("b")
    queue.check_room("b")
    with pytest.raises(QueueFull):
        queue.check_room("a")
    assert queue.remove(SessionId("a1"))
    queue.check_room("a")


def test_server_has_room_for_its_rows_and_its_queue() -> None:
    server = server_of(create_server(Settings(user_rows=3, max_input_qsize=2)))
    for number in range(3 + 2):
        server.input_queue.put(request(str(number), model="hearth-tiny"))
    with pytest.raises(QueueFull):
        server.input_queue.put(request("one too many", model="hearth-tiny"))


def test_removed_request_makes_room_wherever_it_stood() -> None:
    queue = InputQueue(2, NO_ROWS)
    queue.put(request("a"))
    queue.put(request("b"))
    assert queue.remove(SessionId("a"))
    assert not queue.remove(SessionId("a"))
    queue.put(request("c"))
    assert [queue.get(NAME), queue.get(NAME)] == [request("b"), request("c")]


def test_closed_queue_refuses_newcomers_and_keeps_the_waiting() -> None:
    queue = InputQueue(2, NO_ROWS)
    queue.put(request("a"))
    queue.refuse(lambda: Draining("soon", retry_after_s=1))
    with pytest.raises(Draining):
        queue.put(request("b"))
    assert queue.get(NAME) == request("a")


@given(st.lists(st.sampled_from(["put", "get", "remove"]), max_size=60), st.integers(1, 5))
def test_queue_never_exceeds_its_size_and_loses_nothing(actions: list[str], size: int) -> None:
    queue, expected = InputQueue(size, NO_ROWS), list[str]()
    for number, action in enumerate(actions):
        if action == "put" and len(expected) < size:
            queue.put(request(str(number)))
            expected.append(str(number))
        elif action == "put":
            with pytest.raises(QueueFull):
                queue.put(request(str(number)))
        elif action == "get":
            taken = queue.get(NAME)
            assert (taken.session_id if taken else None) == (expected.pop(0) if expected else None)
        elif expected:
            queue.remove(SessionId(expected.pop(len(expected) // 2)))
        assert len(queue) == len(expected)


def test_wanted_session_id_is_given_once() -> None:
    queues = OutputQueues()
    first, second = queues.open(NAME, "mine"), queues.open(NAME, "mine")
    assert first.session_id == "mine"
    assert second.session_id != "mine"
    queues.close(first.session_id)
    assert queues.open(NAME, "mine").session_id == "mine"


def test_events_reach_their_session_in_order_and_nobody_else() -> None:
    queues = OutputQueues()
    a, b = queues.open(NAME, "a"), queues.open(NAME, "b")
    queues.publish([(a.session_id, TokenEvent((1,))), (b.session_id, TokenEvent((2,)))])
    queues.publish([(a.session_id, TokenEvent((3,), FinishReason.STOP))])
    assert [a.get(0.1), a.get(0.1)] == [TokenEvent((1,)), TokenEvent((3,), FinishReason.STOP)]
    assert b.get(0.1) == TokenEvent((2,))
    assert b.get(0.01) is None


def test_events_of_a_closed_session_are_dropped() -> None:
    queues = OutputQueues()
    gone = queues.open(NAME, "gone")
    queues.close(gone.session_id)
    queues.publish([(gone.session_id, TokenEvent((1,)))])
    assert len(queues) == 0
    assert gone.get(0.01) is None
