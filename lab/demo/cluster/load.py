"""Sends requests through the proxy at random times, in an open loop.

A thread draws when the next request is due and hands it to a pool of threads, so that up to
MAX_PRESENT requests can wait for answers while others are sent.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

HOST = "127.0.0.1"
MAX_PRESENT = 256
TIMEOUT_S = 120.0  # longer than a replica's start and an answer together
JOIN_S = 2 * TIMEOUT_S
DATA, DONE = b"data: ", b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """A request as its client saw it, in seconds since the load began. `fault` is empty if the
    answer was complete: with all its tokens and a proper end."""

    began_s: float
    ended_s: float
    ttft_ms: float | None = None
    itl_ms: float | None = None
    fault: str = ""

    def meets(self, slo_ttft_ms: float, slo_itl_ms: float) -> bool:
        if self.fault or self.ttft_ms is None or self.itl_ms is None:
            return False
        return self.ttft_ms <= slo_ttft_ms and self.itl_ms <= slo_itl_ms


@dataclass(frozen=True, slots=True)
class Request:
    """The request that every client sends. The prompt has as many bytes as the answer has tokens,
    because the mock echoes bytes."""

    port: int
    token: str
    model: str
    out_tokens: int

    def body(self, number: int) -> bytes:
        prompt = f"Request {number} of the demo. ".ljust(self.out_tokens, ".")
        body = {
            "model": self.model,
            "prompt": prompt[: self.out_tokens],
            "max_tokens": self.out_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return json.dumps(body).encode()


class Load:
    """A running load. Its owner calls `end`. Any thread may read `outcomes`, which only grows."""

    def __init__(
        self, request: Request, rate_at: Callable[[float], float], most_per_s: float, seed: int
    ) -> None:
        """`rate_at` gives the requests per second at a time, never more than `most_per_s`."""
        self._request, self._rng = request, Random(seed)
        self._rate_at, self._most_per_s = rate_at, most_per_s
        self.outcomes: list[RequestOutcome] = []
        self.num_sent = 0
        self._start_s = time.monotonic()
        self._must_end = threading.Event()
        self._pool = ThreadPoolExecutor(MAX_PRESENT, thread_name_prefix="client")
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def end(self) -> None:
        """Stop sending. Returns when all requests are answered."""
        self._must_end.set()
        self._thread.join(JOIN_S)
        self._pool.shutdown()

    def _run(self) -> None:
        due_s = 0.0
        while True:
            due_s += self._rng.expovariate(self._most_per_s)
            if self._must_end.wait(max(0.0, due_s - self.now_s)):
                return
            if self._rng.random() * self._most_per_s >= self._rate_at(due_s):
                continue  # thins the Poisson process to a lower rate
            self.num_sent += 1
            self._pool.submit(self._send, self.num_sent)

    def _send(self, number: int) -> None:
        began_s, fault = self.now_s, ""
        times_s: list[float] = []
        client = http.client.HTTPConnection(HOST, self._request.port, timeout=TIMEOUT_S)
        headers = {
            "Authorization": f"Bearer {self._request.token}",
            "Content-Type": "application/json",
        }
        try:
            client.request("POST", "/v1/completions", self._request.body(number), headers)
            response = client.getresponse()
            if response.status != http.client.OK:
                fault = f"{response.status}: {response.read(200).decode(errors='replace')}"
            else:
                times_s, fault = self._read(response)
        except Exception as error:  # even for an odd event, so that every request is counted
            fault = repr(error)
        finally:
            client.close()
        self.outcomes.append(
            _outcome(began_s, self.now_s, times_s, fault, self._request.out_tokens)
        )

    def _read(self, response: http.client.HTTPResponse) -> tuple[list[float], str]:
        """Returns the arrival times of the events, and the fault of the stream; empty if none."""
        times_s: list[float] = []
        reason = None
        while line := response.readline():
            if line.startswith(DONE):
                response.read()  # up to the body's end, so as not to disconnect before it
                return times_s, "" if reason == "length" else f"it ended by {reason}"
            if not line.startswith(DATA):
                continue
            event = json.loads(line[len(DATA) :])
            if "error" in event:
                return times_s, f"error in the stream: {event['error']}"[:300]
            times_s.append(self.now_s)
            reason = event["choices"][0]["finish_reason"] if event["choices"] else reason
        return times_s, "the stream ended without an end"


def _outcome(
    began_s: float, ended_s: float, times_s: list[float], fault: str, tokens: int
) -> RequestOutcome:
    if fault or not times_s:
        return RequestOutcome(began_s, ended_s, fault=fault or "an answer without text")
    itl_ms = 1000 * (times_s[-1] - times_s[0]) / max(tokens - 1, 1)
    return RequestOutcome(began_s, ended_s, 1000 * (times_s[0] - began_s), itl_ms)
