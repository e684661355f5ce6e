"""The ring of ranks: each hears from the one before it and speaks to the one after it.

After the last comes the first. A message is one tensor of bytes, its integers and then its
activations, and goes by torch.distributed's Gloo: over TCP, in the clear and without a password, so
that the network between ranks has to be private. Every wait has a bound, after which a rank that
hangs is a dead one.
"""

import time
from collections import deque
from datetime import timedelta
from typing import Self, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ProcessGroupGloo, Work

from inference_api.pipeline.meeting import meet
from inference_api.pipeline.messages import MAX_NUMBERS, PART_TOKENS, BadMessage, Kind, Message

JOIN_TIMEOUT_S = 120.0  # for all ranks to be started
LOAD_TIMEOUT_S = 900.0  # for all ranks to have loaded their layers
HEAD = 4  # integers of a message: which one of this ring, its kind, how many numbers and tokens
INT_BYTES, FLOAT_BYTES = 8, 4
MAX_ON_THEIR_WAY = 64  # messages that the next rank has not taken yet
TAG = 0


class RingBroken(Exception):
    """A rank is gone, or has been silent for too long."""


class Ring:
    """This process's place. One thread."""

    def __init__(
        self, group: ProcessGroup, rank: int, num_ranks: int, hidden_size: int, timeout_s: float
    ) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.timeout_s = timeout_s
        self.is_last = rank == num_ranks - 1
        self.told_at_s = time.monotonic()  # when this rank last told anything
        self._group = group
        self._hidden_size = hidden_size
        self._next, self._previous = (rank + 1) % num_ranks, (rank - 1) % num_ranks
        self._on_their_way: deque[tuple[Work, Tensor]] = deque()
        self._num_told = self._num_heard = 0
        # Gloo is eight times faster into a buffer that is posted already, which may be larger than
        # the message.
        max_bytes = INT_BYTES * (HEAD + MAX_NUMBERS) + FLOAT_BYTES * PART_TOKENS * hidden_size
        self._memory, self._spare = (torch.empty(max_bytes, dtype=torch.uint8) for _ in range(2))
        self._expected = self._expect()

    @classmethod
    def join(cls, address: str, hidden_size: int, timeout_s: float) -> Self:
        """Waits for all ranks. `address`: see torch's rendezvous; env:// is where torchrun says.

        Raises RingBroken where they do not come.
        """
        limit = timedelta(seconds=JOIN_TIMEOUT_S)
        try:
            store, rank, num_ranks = meet(address, JOIN_TIMEOUT_S)
            group = cast(ProcessGroup, ProcessGroupGloo(store, rank, num_ranks, limit))
        except (RuntimeError, ValueError) as error:
            raise RingBroken(f"the ranks did not find each other: {error}") from error
        return cls(group, rank, num_ranks, hidden_size, timeout_s)

    def tell(self, message: Message) -> None:
        """Send it to the next rank, without waiting until it is taken. Raises RingBroken."""
        self._num_told += 1
        num_tokens = 0 if message.states is None else len(message.states)
        count = len(message.numbers)
        assert count <= MAX_NUMBERS
        assert num_tokens <= PART_TOKENS
        head = [self._num_told, message.kind, count, num_tokens, *message.numbers]
        tensor = torch.tensor(head).view(torch.uint8)
        if message.states is not None:
            tensor = torch.cat([tensor, message.states.view(torch.uint8).flatten()])
        self.told_at_s = time.monotonic()
        self._send(tensor)

    def hear(self, timeout_s: float | None = None) -> Message:
        """The next message of the rank before; its activations are there until the next call.

        Raises RingBroken, BadMessage.
        """
        self._wait(self._expected, timeout_s or self.timeout_s)
        heard, self._memory, self._spare = self._memory, self._spare, self._memory
        self._num_heard += 1
        number, kind, count, num_tokens = heard[: INT_BYTES * HEAD].view(torch.int64).tolist()
        if kind != Kind.STOP:  # behind which the neighbour may have left
            self._expected = self._expect()
        if number != self._num_heard:
            raise BadMessage(f"message {number} came after {self._num_heard - 1}")
        if not (0 <= count <= MAX_NUMBERS and 0 <= num_tokens <= PART_TOKENS):
            raise BadMessage(f"a message of {count} numbers and {num_tokens} tokens")
        begin = INT_BYTES * (HEAD + count)
        numbers = heard[INT_BYTES * HEAD : begin].view(torch.int64).tolist()
        end = begin + FLOAT_BYTES * num_tokens * self._hidden_size
        states = heard[begin:end].view(torch.float32).view(num_tokens, self._hidden_size)
        try:
            return Message(Kind(kind), numbers, states if num_tokens else None)
        except ValueError as error:
            raise BadMessage(str(error)) from None

    def settle(self) -> None:
        """Wait until everything that was told is taken. Raises RingBroken."""
        while self._on_their_way:
            self._wait(self._on_their_way.popleft()[0], self.timeout_s)

    def _send(self, tensor: Tensor) -> None:
        sent = self._on_their_way
        while sent and (len(sent) >= MAX_ON_THEIR_WAY or sent[0][0].is_completed()):
            self._wait(sent.popleft()[0], self.timeout_s)
        try:
            sent.append((self._group.send([tensor], self._next, TAG), tensor))
        except RuntimeError as error:
            raise self._broken(error) from error

    def _expect(self) -> Work:
        try:
            return self._group.recv([self._memory], self._previous, TAG)
        except RuntimeError as error:
            raise self._broken(error) from error

    def _wait(self, work: Work, timeout_s: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise self._broken(error) from error

    def _broken(self, error: RuntimeError) -> RingBroken:
        reason = str(error).strip().splitlines()[0]
        return RingBroken(
            f"rank {self.rank} lost a neighbour, {self._previous} or {self._next}, whose log says "
            f"why: {reason}"
        )
