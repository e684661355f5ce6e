"""The ring of ranks: each receives from the previous rank and sends to the next one; the last sends
to rank 0.

A message has a head, integers, and activations. It goes over TCP without encryption or password, so
the network between ranks must be private. Every wait has a timeout, after which a silent rank
counts as dead.
"""

import socket
import time
from contextlib import suppress
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import Self

import numpy as np

from inference_api.pipeline.meeting import meet, received
from inference_api.pipeline.messages import MAX_NUMBERS, PROMPT_TOKENS, BadMessage, Kind, Message
from inference_api.pipeline.ranks import RankSettings

JOIN_TIMEOUT_S = 120.0  # timeout for all ranks to start
LOAD_TIMEOUT_S = 900.0  # timeout for all ranks to load their layers
HEAD = Struct("<3q")  # kind, number of integers, number of tokens
INT_BYTES, FLOAT_BYTES = 8, 4


class RingBroken(Exception):
    """A rank is gone, or was silent for too long."""


class Ring:
    """This process's connections to its neighbours. For one thread.

    The ring sends on a thread of its own, so that a rank computes meanwhile, and ranks do not
    deadlock when all of them send more than the connections can buffer.
    """

    def __init__(
        self,
        onward: socket.socket,
        previous: socket.socket,
        ranks: RankSettings,
        hidden_size: int,
        timeout_s: float,
    ) -> None:
        """Takes over the connections: `onward` to the next neighbour, `previous` from the other."""
        self.rank, self.num_ranks = ranks.rank, ranks.world_size
        self.timeout_s = timeout_s
        self.is_last = self.rank == self.num_ranks - 1
        self.sent_at_s = time.monotonic()  # when this rank last sent a message
        self._hidden_size = hidden_size
        self._onward, self._previous = onward, previous
        onward.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        onward.settimeout(timeout_s)
        # It holds at most the parts of a step, because rank 0 then waits for their results.
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._failure: OSError | None = None  # the sender's error, set before it ends
        self._sender = Thread(target=self._send_all, name="ring", daemon=True)
        self._sender.start()

    @classmethod
    def join(cls, ranks: RankSettings, hidden_size: int, timeout_s: float) -> Self:
        """Returns the ring once all ranks have come. Raises RingBroken if they do not."""
        try:
            onward, previous = meet(ranks, JOIN_TIMEOUT_S)
        except OSError as error:
            host, port = ranks.meeting_place
            raise RingBroken(
                f"the ranks did not find each other at {host}:{port}: {error}"
            ) from error
        return cls(onward, previous, ranks, hidden_size, timeout_s)

    def send(self, message: Message) -> None:
        """Send to the next rank, without waiting for delivery. Raises RingBroken."""
        if self._failure is not None:
            raise self._lost(self.rank + 1, self._failure) from self._failure
        num_tokens = 0 if message.states is None else len(message.states)
        assert len(message.numbers) <= MAX_NUMBERS
        assert num_tokens <= PROMPT_TOKENS
        head = HEAD.pack(message.kind, len(message.numbers), num_tokens)
        numbers = np.array(message.numbers, "<i8").data
        states = b"" if message.states is None else np.ascontiguousarray(message.states, "<f4").data
        self._unsent.put(b"".join((head, numbers, states)))
        self.sent_at_s = time.monotonic()

    def receive(self, timeout_s: float | None = None) -> Message:
        """Returns the next message from the previous rank. Raises RingBroken, BadMessage."""
        until_s = time.monotonic() + (timeout_s or self.timeout_s)
        kind, count, num_tokens = HEAD.unpack(self._received(HEAD.size, until_s))
        if not (0 <= count <= MAX_NUMBERS and 0 <= num_tokens <= PROMPT_TOKENS):
            raise BadMessage(f"a message of {count} numbers and {num_tokens} tokens")
        begin = INT_BYTES * count
        body = self._received(begin + FLOAT_BYTES * num_tokens * self._hidden_size, until_s)
        numbers = np.frombuffer(body[:begin], "<i8").tolist()
        states = np.frombuffer(body[begin:], "<f4").reshape(num_tokens, self._hidden_size)
        try:
            return Message(Kind(kind), numbers, states if num_tokens else None)
        except ValueError as error:
            raise BadMessage(str(error)) from None

    def settle(self) -> None:
        """Wait until all messages are sent. No message may follow. Raises RingBroken."""
        self._unsent.put(None)
        self._sender.join(self.timeout_s)
        if self._failure is not None or self._sender.is_alive():
            raise self._lost(self.rank + 1, self._failure or TimeoutError("it takes nothing"))

    def close(self) -> None:
        """Leave the ring, which both neighbours notice. Idempotent."""
        self._unsent.put(None)
        for each in (self._onward, self._previous):
            with suppress(OSError):  # the connection is closed already
                each.shutdown(socket.SHUT_RDWR)
        self._sender.join()
        self._onward.close()
        self._previous.close()

    def _send_all(self) -> None:
        """Send messages until there is a None in the queue. Runs on the sender's thread."""
        try:
            while (frame := self._unsent.get()) is not None:
                self._onward.sendall(frame)
        except OSError as error:
            self._failure = error
            with suppress(OSError):
                self._previous.shutdown(socket.SHUT_RDWR)  # wakes the receiving thread

    def _received(self, num_bytes: int, until_s: float) -> memoryview:
        try:
            return received(self._previous, num_bytes, until_s)
        except OSError as error:
            if self._failure is not None:
                raise self._lost(self.rank + 1, self._failure) from error
            raise self._lost(self.rank - 1, error) from error

    def _lost(self, rank: int, reason: OSError) -> RingBroken:
        return RingBroken(
            f"rank {self.rank} lost its neighbour {rank % self.num_ranks}, whose log says why: "
            f"{reason}"
        )
