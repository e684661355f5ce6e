"""Neighbours that speak, that are gone, that hang, and that come again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import torch

from inference_api.pipeline import ring as ring_module
from inference_api.pipeline.messages import MAX_NUMBERS, PART_TOKENS, BadMessage, Kind, Message
from inference_api.pipeline.ring import Ring, RingBroken
from tests.ports import free_port

HIDDEN = 32
WORKER = """
import sys
from inference_api.pipeline.messages import Kind
from inference_api.pipeline.ring import Ring

ring = Ring.join(sys.argv[1], 32, 60)
while (message := ring.hear()).kind is not Kind.STOP:
    ring.tell(message)
    print(message.kind.name, flush=True)
ring.settle()
"""


@contextmanager
def neighbour(port: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that says what it hears."""
    address = f"tcp://127.0.0.1:{port}?rank=1&world_size=2"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, address], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def join(port: int, timeout_s: float = 60.0) -> Ring:
    return Ring.join(f"tcp://127.0.0.1:{port}?rank=0&world_size=2", HIDDEN, timeout_s)


def test_message_comes_back_with_its_activations() -> None:
    with neighbour(port := free_port()) as process:
        ring = join(port)
        for count, tokens in ((0, 0), (3, 1), (MAX_NUMBERS, PART_TOKENS)):
            states = torch.randn(tokens, HIDDEN) if tokens else None
            ring.tell(Message(Kind.STEP, list(range(-1, count - 1)), states))
            heard = ring.hear()
            assert (heard.kind, heard.numbers) == (Kind.STEP, list(range(-1, count - 1)))
            assert (heard.states is None) == (states is None)
            assert heard.states is None or states is None or torch.equal(heard.states, states)
        ring.tell(Message(Kind.STOP))
        assert process.wait(timeout=60) == 0


def test_neighbour_that_is_gone_is_known_at_once_and_another_takes_its_place() -> None:
    """The store of the first meeting is there at the second: torchrun's is."""
    port = free_port()
    with neighbour(port) as process:
        ring = join(port)
        process.kill()
        with pytest.raises(RingBroken, match="rank 0 lost a neighbour"):
            ring.hear()
    with neighbour(port):
        again = join(port)
        again.tell(Message(Kind.PING))
        assert again.hear().kind is Kind.PING


def test_neighbour_that_hangs_is_given_up() -> None:
    with neighbour(port := free_port()) as process:
        ring = join(port, timeout_s=0.5)
        os.kill(process.pid, signal.SIGSTOP)
        ring.tell(Message(Kind.PING))
        with pytest.raises(RingBroken):
            ring.hear()


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "JOIN_TIMEOUT_S", 0.5)
    with pytest.raises(RingBroken, match="did not find each other"):
        join(free_port())


def both_ranks() -> list[Ring]:
    """A ring of two in one process."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}?rank=1&world_size=2"
    rings: list[Ring] = []
    joining = Thread(target=lambda: rings.append(Ring.join(address, HIDDEN, 60.0)))
    joining.start()
    first = join(port)
    joining.join(60)
    return [first, *rings]


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        ([2, Kind.PING, 0, 0], "message 2 came after 0"),
        ([1, 99, 0, 0], "99 is not a valid Kind"),
        ([1, Kind.STEP, -1, 0], "-1 numbers"),
        ([1, Kind.STEP, 2**40, 0], "numbers and 0 tokens"),
        ([1, Kind.STEP, 0, PART_TOKENS + 1], "129 tokens"),
        ([1, Kind.STEP, 0, -5], "-5 tokens"),
    ],
)
def test_what_no_rank_says_is_refused(numbers: list[int], fault: str) -> None:
    hears, says = both_ranks()
    says._send(torch.tensor(numbers).view(torch.uint8))
    with pytest.raises(BadMessage, match=fault):
        hears.hear()


def test_neighbour_that_leaves_behind_its_last_word_breaks_nothing() -> None:
    first, *rings = both_ranks()
    first.tell(Message(Kind.STOP))
    first.settle()
    del first
    assert rings.pop().hear().kind is Kind.STOP
