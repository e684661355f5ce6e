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


def request(name: str, priority: int = 0) -> GenerationRequest:
    return GenerationRequest(SessionId(name), (1, 2, 3), max_tokens=4, priority=priority)


def test_first_come_first_served() -> None:
    queue = InputQueue(max_size=3)
    for name in "abc":
        queue.put(request(name))
    assert [queue.get() for _ in range(4)] == [request("a"), request("b"), request("c"), None]


def test_lower_priority_leaves_earlier_but_nobody_waits_for_ever() -> None:
    now_s = 0.0
    queue = InputQueue(max_size=100, clock=lambda: now_s)
    queue.put(request("plain"))
    queue.put(request("patient", priority=2))
    served = []
    for turn in range(8):  # an urgent request every five seconds, and time for one
        now_s = 5.0 * turn
        queue.put(request(f"urgent {turn}", priority=-1))
        served.append(str(getattr(queue.get(), "session_id", None)))
    assert served[:4] == ["urgent 0", "urgent 1", "plain", "urgent 2"]
    assert "patient" in served


def test_equal_priorities_are_served_as_they_came() -> None:
    queue = InputQueue(max_size=9, clock=lambda: 0.0)
    for name in "abc":
        queue.put(request(name, priority=3))
    queue.put(request("d", priority=2))
    order = [queue.get() for _ in range(4)]
    assert [each.session_id for each in order if each] == ["d", "a", "b", "c"]


def test_full_queue_refuses_with_a_time_from_the_measured_drain_rate() -> None:
    now_s = 0.0
    queue = InputQueue(max_size=4, clock=lambda: now_s)
    for number in range(10):
        now_s = 2.0 * number  # one request leaves every two seconds
        queue.put(request(str(number)))
        queue.get()
    for name in "abcd":
        queue.put(request(name))
    with pytest.raises(QueueFull) as caught:
        queue.put(request("e"))
    assert caught.value.retry_after_s == 8
    with pytest.raises(QueueFull):
        queue.check_room()


def test_burst_fills_the_free_rows_and_the_queue() -> None:
    queue = InputQueue(max_size=4, num_rows=32)
    for number in range(36):
        queue.put(request(str(number)))
    for _ in range(32):  # into the rows: that makes no room
        queue.get()
        with pytest.raises(QueueFull):
            queue.check_room()
    queue.row_is_free()
    queue.put(request("next"))
    with pytest.raises(QueueFull):
        queue.put(request("one too many"))


def test_server_has_room_for_its_rows_and_its_queue() -> None:
    server = server_of(create_server(Settings(user_rows=3, max_input_qsize=2)))
    for number in range(3 + 2):
        server.input_queue.put(request(str(number)))
    with pytest.raises(QueueFull):
        server.input_queue.put(request("one too many"))


def test_removed_request_makes_room_wherever_it_stood() -> None:
    queue = InputQueue(max_size=2)
    queue.put(request("a"))
    queue.put(request("b"))
    assert queue.remove(SessionId("a"))
    assert not queue.remove(SessionId("a"))
    queue.put(request("c"))
    assert [queue.get(), queue.get()] == [request("b"), request("c")]


def test_closed_queue_refuses_newcomers_and_keeps_the_waiting() -> None:
    queue = InputQueue(max_size=2)
    queue.put(request("a"))
    queue.refuse(lambda: Draining("soon", retry_after_s=1))
    with pytest.raises(Draining):
        queue.put(request("b"))
    assert queue.get() == request("a")


@given(st.lists(st.sampled_from(["put", "get", "remove"]), max_size=60), st.integers(1, 5))
def test_queue_never_exceeds_its_size_and_loses_nothing(actions: list[str], size: int) -> None:
    queue, expected = InputQueue(size), list[str]()
    for number, action in enumerate(actions):
        if action == "put" and len(expected) < size:
            queue.put(request(str(number)))
            expected.append(str(number))
        elif action == "put":
            with pytest.raises(QueueFull):
                queue.put(request(str(number)))
        elif action == "get":
            taken = queue.get()
            assert (taken.session_id if taken else None) == (expected.pop(0) if expected else None)
        elif expected:
            queue.remove(SessionId(expected.pop(len(expected) // 2)))
        assert len(queue) == len(expected)


def test_wanted_session_id_is_given_once() -> None:
    queues = OutputQueues()
    first, second = queues.open("mine"), queues.open("mine")
    assert first.session_id == "mine"
    assert second.session_id != "mine"
    queues.close(first.session_id)
    assert queues.open("mine").session_id == "mine"


def test_events_reach_their_session_in_order_and_nobody_else() -> None:
    queues = OutputQueues()
    a, b = queues.open("a"), queues.open("b")
    queues.publish([(a.session_id, TokenEvent((1,))), (b.session_id, TokenEvent((2,)))])
    queues.publish([(a.session_id, TokenEvent((3,), FinishReason.STOP))])
    assert [a.get(0.1), a.get(0.1)] == [TokenEvent((1,)), TokenEvent((3,), FinishReason.STOP)]
    assert b.get(0.1) == TokenEvent((2,))
    assert b.get(0.01) is None


def test_events_of_a_closed_session_are_dropped() -> None:
    queues = OutputQueues()
    gone = queues.open("gone")
    queues.close(gone.session_id)
    queues.publish([(gone.session_id, TokenEvent((1,)))])
    assert len(queues) == 0
    assert gone.get(0.01) is None
