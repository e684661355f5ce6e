"""One greedy or sampled completion over HTTP, of Hearth and of llama.cpp's server alike.

Prompts are token ids, so that nobody's tokenizer takes part, and EOS is ignored, so that everybody
writes the same number of tokens. The stream is read as it comes and understood afterwards.
"""

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

REQUEST_TIMEOUT_S = 3600.0
EVENT = b"data: "
LAST_EVENT = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Request:
    """`temperature` 0 is greedy; `seed` is that of the draws."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """What came back: the body of server-sent events, and how long its first bytes and all of it
    took."""

    ttft_s: float
    total_s: float
    body: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line.removeprefix(EVENT) for line in self.body.splitlines() if line]
        return [json.loads(line) for line in lines if line != LAST_EVENT]

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
    """Send a request to `/v1/completions` and read its answer to the end."""
    body = {
        "model": "falcon40b",
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    sent_s = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 200, response.read()
    pieces = [response.read1(65536)]
    ttft_s = time.perf_counter() - sent_s
    while piece := response.read1(65536):
        pieces.append(piece)
    total_s = time.perf_counter() - sent_s
    connection.close()
    return Stream(ttft_s, total_s, b"".join(pieces))
