"""A client for completions and chats over HTTP that Hearth and llama.cpp's server both answer.

Prompts of completions are token ids, so that no tokenizer takes part. EOS is ignored, so that all
servers generate the same number of tokens. A stream is parsed only after it has ended.
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
    """A server refused a request. The message is the body of its answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A completion to request. `temperature` 0 is greedy; `seed` is for sampling."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer: its body of server-sent events, and the arrival times of the events in seconds
    since the request was sent."""

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
        """The last event, which has `usage` and, from llama.cpp, `timings`."""
        return self.events[-1]

    @property
    def num_tokens(self) -> int:
        return int(self.last["usage"]["completion_tokens"])


def complete(port: int, request: Request, ignore_eos: bool = True) -> Stream:
    """Sends a request to `/v1/completions` and reads its answer to the end. Raises NotAnswered."""
    body = {
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": ignore_eos,
    }
    return streamed(port, "/v1/completions", body)


def streamed(port: int, path: str, body: Mapping[str, Any]) -> Stream:
    """Sends a body, asks for a stream with usage, and reads it to the end. Raises NotAnswered."""
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
        if piece.startswith(EVENT):  # not a ping
            events_s.append(time.perf_counter() - sent_s)
    connection.close()
    return Stream(events_s, b"".join(pieces))
