"""Neighbours that speak, that are gone, that hang, and that say what no rank says."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import NoReturn

import numpy as np
import pytest

from inference_api.pipeline import ring as ring_module
from inference_api.pipeline.messages import (
    MAX_NUMBERS,
    PART_TOKENS,
    PROMPT_TOKENS,
    BadMessage,
    Kind,
    Message,
)
from inference_api.pipeline.ranks import RankSettings
from inference_api.pipeline.ring import HEAD, Ring, RingBroken
from lab.kit.servers import TIMEOUT_S
from tests.ports import free_port

HIDDEN = 32
WORKER = """
import sys
from inference_api.pipeline.messages import Kind
from inference_api.pipeline.ranks import RankSettings
from inference_api.pipeline.ring import Ring

ring = Ring.join(RankSettings(rank=1, world_size=2, master_port=int(sys.argv[1])), 32, 60)
while (message := ring.receive()).kind is not Kind.STOP:
    ring.send(message)
    print(message.kind.name, flush=True)
ring.settle()
"""
RANKS = RankSettings(rank=1, world_size=2)


@contextmanager
def neighbour(port: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that says what it hears."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(port)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def joined(port: int, timeout_s: float = 60.0) -> Iterator[Ring]:
    ring = Ring.join(RankSettings(rank=0, world_size=2, master_port=port), HIDDEN, timeout_s)
    try:
        yield ring
    finally:
        ring.close()


@pytest.fixture
def pair() -> Iterator[tuple[Ring, socket.socket, socket.socket]]:
    """A ring, what its previous neighbour says it by, and what its next one hears it by."""
    ends = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends.append((socket.create_connection(server.getsockname()), server.accept()[0]))
    (onward, hears), (says, previous) = ends
    ring = Ring(onward, previous, RANKS, HIDDEN, 60.0)
    with hears, says:
        yield ring, says, hears
    ring.close()


Pair = tuple[Ring, socket.socket, socket.socket]


def frame(*numbers: int, rest: bytes = b"") -> bytes:
    return HEAD.pack(*numbers) + rest


def tell_for_ever(ring: Ring, message: Message) -> NoReturn:
    while True:
        ring.send(message)


def test_message_comes_back_with_its_activations() -> None:
    with neighbour(port := free_port()) as process, joined(port) as ring:
        for count, tokens in ((0, 0), (3, 1), (MAX_NUMBERS, PROMPT_TOKENS)):
            states = np.random.default_rng(tokens).standard_normal((tokens, HIDDEN), np.float32)
            told = Message(Kind.STEP, range(-1, count - 1), states if tokens else None)
            ring.send(told)
            heard = ring.receive()
            assert (heard.kind, heard.numbers) == (Kind.STEP, list(range(-1, count - 1)))
            assert (heard.states is None) == (tokens == 0)
            assert heard.states is None or np.array_equal(heard.states, states)
        ring.send(Message(Kind.STOP))
        assert process.wait(timeout=TIMEOUT_S) == 0


def test_neighbour_that_is_gone_is_known_at_once_and_another_takes_its_place() -> None:
    port = free_port()
    with neighbour(port) as process, joined(port) as ring:
        process.kill()
        with pytest.raises(RingBroken, match="rank 0 lost its neighbour 1"):
            ring.receive()
    with neighbour(port), joined(port) as again:
        again.send(Message(Kind.PING))
        assert again.receive().kind is Kind.PING


def test_neighbour_that_hangs_is_given_up() -> None:
    with neighbour(port := free_port()) as process, joined(port, timeout_s=0.5) as ring:
        os.kill(process.pid, signal.SIGSTOP)
        ring.send(Message(Kind.PING))
        with pytest.raises(RingBroken, match=r"rank 0 lost its neighbour 1.*timed out"):
            ring.receive()


def test_neighbour_that_drips_is_given_up(pair: Pair) -> None:
    """Each byte comes long before its time; all of them do not."""
    ring, says, _ = pair
    bound, is_over = frame(Kind.STEP, MAX_NUMBERS, 0), Event()

    def drip() -> None:
        for byte in bound:
            says.sendall(bytes([byte]))
            if is_over.wait(0.01):
                return

    dripping = Thread(target=drip)
    dripping.start()
    with pytest.raises(RingBroken, match="timed out"):
        ring.receive(timeout_s=0.1)
    is_over.set()
    dripping.join(60)


def test_more_than_connections_hold_goes_round_while_nobody_hears() -> None:
    """Each tells all it has before it hears anything: were they to wait for one another, none
    would go on."""
    port, hidden, num_messages = free_port(), 4096, 32
    states = np.ones((PART_TOKENS, hidden), np.float32)
    heard: dict[int, list[int]] = {}

    def work(rank: int) -> None:
        ring = Ring.join(RankSettings(rank=rank, world_size=2, master_port=port), hidden, 60.0)
        for number in range(num_messages):
            ring.send(Message(Kind.STEP, (number,), states))
        heard[rank] = [ring.receive().numbers[0] for _ in range(num_messages)]
        ring.settle()
        ring.close()

    threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert heard == {0: [*range(num_messages)], 1: [*range(num_messages)]}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (frame(99, 0, 0), "99 is not a valid Kind"),
        (frame(Kind.STEP, -1, 0), "-1 numbers"),
        (frame(Kind.STEP, 2**40, 0), "numbers and 0 tokens"),
        (frame(Kind.STEP, 0, PROMPT_TOKENS + 1), "1025 tokens"),
        (frame(Kind.STEP, 0, -5), "-5 tokens"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "a message of"),
    ],
    ids=str,
)
def test_what_no_rank_says_is_refused(pair: Pair, said: bytes, fault: str) -> None:
    ring, says, _ = pair
    says.sendall(said)
    with pytest.raises(BadMessage, match=fault):
        ring.receive()


@pytest.mark.parametrize("num_bytes", [0, 1, HEAD.size - 1, HEAD.size, HEAD.size + 15])
def test_half_a_message_is_no_message(pair: Pair, num_bytes: int) -> None:
    ring, says, _ = pair
    says.sendall(frame(Kind.KEEP, 2, 0, rest=bytes(16))[:num_bytes])
    says.close()
    with pytest.raises(RingBroken, match=r"rank 1 lost its neighbour 0.* it has left"):
        ring.receive()


def test_messages_may_come_in_any_pieces(pair: Pair) -> None:
    ring, says, _ = pair
    said = 3 * frame(Kind.KEEP, 2, 0, rest=bytes(16))
    for begin in range(0, len(said), 7):
        says.sendall(said[begin : begin + 7])
    assert [ring.receive().kind for _ in range(3)] == [Kind.KEEP] * 3


def test_neighbour_that_leaves_behind_its_last_word_breaks_nothing(pair: Pair) -> None:
    ring, says, _ = pair
    says.sendall(frame(Kind.STOP, 0, 0))
    says.close()
    assert ring.receive().kind is Kind.STOP


def test_next_neighbour_that_takes_nothing_is_given_up(pair: Pair) -> None:
    """Also by a rank that waits for the previous one meanwhile."""
    ring = pair[0]
    ring._onward.settimeout(0.2)
    states = np.zeros((PART_TOKENS, HIDDEN), np.float32)
    with suppress(RingBroken):  # known already, if this takes long
        for _ in range(2**26 // states.nbytes):  # more than the connection holds
            ring.send(Message(Kind.STEP, (), states))
    with pytest.raises(RingBroken, match=r"rank 1 lost its neighbour 0.*timed out"):
        ring.receive()
    with pytest.raises(RingBroken, match=r"rank 1 lost its neighbour 0.*timed out"):
        ring.settle()


def test_next_neighbour_that_is_gone_is_known_when_it_is_told_something(pair: Pair) -> None:
    ring, _, hears = pair
    hears.close()
    with pytest.raises(RingBroken, match="rank 1 lost its neighbour 0"):
        tell_for_ever(ring, Message(Kind.PING))


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "JOIN_TIMEOUT_S", 0.2)
    ranks = RankSettings(rank=0, world_size=3, master_port=free_port())
    with pytest.raises(RingBroken, match=r"did not find each other .* not come: 1, 2$"):
        Ring.join(ranks, HIDDEN, 60.0)
