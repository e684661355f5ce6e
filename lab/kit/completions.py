"""Greedy or sampled completions, and chats, over HTTP, of Hearth and of llama.cpp's server alike.

Prompts of completions are token ids, so that nobody's tokenizer takes part, and EOS is ignored, so
that everybody writes the same number of tokens. A stream is read as it comes and understood
afterwards.
"""

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REQUEST_TIMEOUT_S = 3600.0
EVENT = b"data: "
LAST_EVENT = b"[DONE]"


class NotAnswered(Exception):
    """A server refused a request, or broke its answer off; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Request:
    """`temperature` 0 is greedy; `seed` is that of the draws."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """What came back: the body of server-sent events, and when events of it did, in seconds since
    the request was sent."""

    events_s: Sequence[float]
    body: bytes

    @property
    def ttft_s(self) -> float:
        return self.events_s[0]

    @property
    def total_s(self) -> float:
        return self.events_s[-1]

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line for line in self.body.splitlines() if line.startswith(EVENT)]
        texts = [line.removeprefix(EVENT) for line in lines]
        return [json.loads(text) for text in texts if text != LAST_EVENT]

    @property
    def text(self) -> str:
        return "".join(choice["text"] for event in self.events for choice in event["choices"])

    @property
    def last(self) -> dict[str, Any]:
        """The event with `usage`, and with llama.cpp's `timings`."""
        return self.events[-1]

    @property
    def num_tokens(self) -> int:
        return int(self.last["usage"]["completion_tokens"])


def complete(port: int, request: Request, ignore_eos: bool = True) -> Stream:
    """Send a request to `/v1/completions` and read its answer to the end. Raises NotAnswered."""
    body = {
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": ignore_eos,
    }
    return streamed(port, "/v1/completions", body)


def streamed(port: int, path: str, body: Mapping[str, Any]) -> Stream:
    """Send a body, ask for a stream and its usage, and read it to the end. Raises NotAnswered."""
    asked = {
        "model": "falcon40b",
        "stream": True,
        "stream_options": {"include_usage": True},
        **body,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    sent_s = time.perf_counter()
    connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise NotAnswered(response.read().decode())
    pieces, events_s = [], []
    while piece := response.read1(65536):
        pieces.append(piece)
        if piece.startswith(EVENT):  # and is no ping
            events_s.append(time.perf_counter() - sent_s)
    connection.close()
    return Stream(events_s, b"".join(pieces))
