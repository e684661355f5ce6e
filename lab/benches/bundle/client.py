"""The client of `bench-bundle`: chats with experts, and records the times of their answers."""

import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarking.load.answers import AnswerFault, ChatStream

TIMEOUT_S = 300.0
READ_BYTES = 65536
# HTTP/1.0 has no chunks: data that comes together is read together and has one time.
REQUEST = "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json"
PortOf = Callable[[str], int]  # maps an expert's name to a port


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat of one message. `temperature` 0 is greedy; `ignore_eos` gives all `max_tokens`."""

    expert: str
    prompt: str
    max_tokens: int = 32
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


class Switch(NamedTuple):
    """The seconds that a request waited for its expert to be loaded."""

    wait_s: float = 0.0
    evict_s: float = 0.0
    load_s: float = 0.0
    is_initiator: bool = False

    @property
    def total_s(self) -> float:
        return self.wait_s + self.evict_s + self.load_s


class Span(NamedTuple):
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `due_s` is when the request was due. All times are on one monotonic clock."""

    ask: Ask
    due_s: float
    sent_s: float
    ended_s: float
    chunks_s: tuple[float, ...] = ()  # one for each event that carried text
    text: str = ""
    model: str | None = None  # the model that answered, as the server says
    num_tokens: int = 0
    switch: Switch | None = None  # None if the expert was resident
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Returns the time to the first text, or to the end of an answer without text."""
        return (self.chunks_s[0] if self.chunks_s else self.ended_s) - self.due_s

    @property
    def is_paid(self) -> bool:
        return self.switch is not None

    @property
    def gaps(self) -> list[Span]:
        """Returns the spans between pieces of text. Pieces that were read together count as one."""
        return [Span(*pair) for pair in pairwise(self.chunks_s) if pair[0] < pair[1]]

    @property
    def load(self) -> Span | None:
        """Returns when the expert was loaded, if it was loaded for this request."""
        if self.switch is None or not self.switch.is_initiator:
            return None
        ready_s = self.sent_s + self.switch.total_s
        return Span(ready_s - self.switch.load_s, ready_s)


def send(port: int, ask: Ask, due_s: float | None = None) -> Reply:
    """Sends a request. Does not raise for a server's errors, which are in the reply."""
    sent_s = time.perf_counter()
    due_s = sent_s if due_s is None else due_s
    answer, error = ChatStream(), ""
    try:
        _exchange(port, ask, answer)
    except (OSError, AnswerFault) as fault:
        error = f"{type(fault).__name__}: {fault}"
    usage = answer.usage or {}
    return Reply(
        ask,
        due_s,
        sent_s,
        time.perf_counter(),
        tuple(answer.chunk_s),
        "".join(answer.chunk_texts),
        answer.model,
        int(usage.get("completion_tokens") or 0),
        _switch(usage),
        error,
    )


def in_turn(port_of: PortOf, asks: Sequence[Ask], users: int) -> list[Reply]:
    """Runs a closed loop: a user sends its next request when its last answer has ended."""
    with ThreadPoolExecutor(users) as pool:
        return list(pool.map(lambda ask: send(port_of(ask.expert), ask), asks))


def arriving(port_of: PortOf, asks: Sequence[Ask], after_s: Sequence[float]) -> list[Reply]:
    """Runs an open loop: sends each request `after_s` seconds from the start."""
    began_s = time.perf_counter()

    def send_when_due(ask: Ask, due_s: float) -> Reply:
        time.sleep(max(0.0, due_s - time.perf_counter()))
        return send(port_of(ask.expert), ask, due_s)

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(send_when_due, asks, [began_s + after for after in after_s]))


def _exchange(port: int, ask: Ask, answer: ChatStream) -> None:
    body = {
        "model": ask.expert,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "ignore_eos": ask.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    request = f"{REQUEST}\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := connection.recv(READ_BYTES)):
                raise AnswerFault("connection", "it was closed before an answer")
            head += piece
        head, _, piece = head.partition(b"\r\n\r\n")
        status = head.split(maxsplit=2)[1].decode()
        if status != "200":
            raise AnswerFault(status, piece.decode(errors="replace"))
        answer.feed(piece, time.perf_counter())
        while piece := connection.recv(READ_BYTES):
            answer.feed(piece, time.perf_counter())
    answer.finish()


def _switch(usage: dict[str, Any]) -> Switch | None:
    switch = usage.get("switch")
    if not usage.get("switching_time") or not switch:
        return None
    return Switch(switch["wait_s"], switch["evict_s"], switch["load_s"], switch["initiator"])
