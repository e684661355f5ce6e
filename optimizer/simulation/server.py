"""Simulates a continuous-batching server token by token.

It has user rows, a bounded queue before them, and steps, which take a(n) + c(n) p for n decoding
rows and p prompt tokens. Prompts get the room of a step, the oldest first. A row decodes with its
prompt's last token, so the step that ends a prompt yields the first token of the answer. Between
two events (an arrival that finds a free row, a chunk of a prompt, the end of an answer) all steps
take the same time, and are simulated at once. Pure: any thread.
"""

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from common.numerics import FloatArray
from optimizer.model.step_curve import StepCurve
from optimizer.simulation.traffic import Requests

PRIORITY_MS = 10_000.0  # waiting time that one step of priority is worth


@dataclass(frozen=True, slots=True)
class Server:
    """One replica: step times, user rows, and the number of requests that may wait."""

    curve: StepCurve
    max_batch: int
    max_queue: int

    def max_steps_of(self, prompt_tokens: float) -> int:
        """Returns the most steps that a prompt of `prompt_tokens` tokens can take."""
        least = float(self.curve.room_tokens(np.array([float(self.max_batch)]))[0])
        return max(math.ceil(prompt_tokens / max(least, 1.0)), 1)


@dataclass(frozen=True, slots=True)
class Served:
    """Times of each request in ms; NaN for requests that found the queue full. `rows` is the number
    of rows in use when it got one, its own included."""

    admitted_ms: FloatArray
    first_token_ms: FloatArray
    end_ms: FloatArray
    rows: FloatArray


def serve(server: Server, requests: Requests) -> Served:
    """Returns the times of all requests, simulating until the last has ended."""
    return _Run(server, requests).run()


class _Run:
    """One simulation. Lists are indexed by number of rows or by request; times are ms."""

    def __init__(self, server: Server, requests: Requests) -> None:
        rows = np.arange(server.max_batch + 1.0)
        self._max_batch, self._max_in_system = (
            server.max_batch,
            server.max_batch + server.max_queue,
        )
        self._decode_ms: list[float] = server.curve.decode.at(rows).tolist()
        self._token_ms: list[float] = server.curve.prompt_token.at(rows).tolist()
        self._room_tokens: list[float] = server.curve.room_tokens(rows).tolist()
        self._arrivals_ms: list[float] = [*requests.arrival_ms.tolist(), math.inf]
        self._prompts: list[int] = np.maximum(requests.in_tokens - 1, 0).tolist()
        self._answers: list[int] = requests.out_tokens.tolist()
        places = requests.arrival_ms + PRIORITY_MS * requests.priority
        self._places: list[float] = places.tolist()
        self._waiting: list[tuple[float, int]] = []  # a heap of (place, request)
        self._prefilling: list[tuple[int, int]] = []  # (request, tokens left), the oldest first
        self._decoding: list[tuple[int, int]] = []  # a heap of (last step, request)
        self._now_ms, self._step, self._upcoming = 0.0, 0, 0
        count = len(self._answers)
        self._admitted, self._first, self._end, self._rows = ([math.nan] * count for _ in range(4))

    def run(self) -> Served:
        waiting, prefilling, decoding = self._waiting, self._prefilling, self._decoding
        while self._upcoming < len(self._answers) or waiting or prefilling or decoding:
            if not (waiting or prefilling or decoding):
                self._now_ms = self._arrivals_ms[self._upcoming]
                self._receive()
            self._admit()
            if prefilling:
                self._step_with_prompts()
            else:
                self._steps_without()
            self._receive()  # before rows are freed: arrivals met the fuller queue
            while decoding and decoding[0][0] <= self._step:
                self._end[heappop(decoding)[1]] = self._now_ms
        return Served(*map(np.array, (self._admitted, self._first, self._end, self._rows)))

    def _receive(self) -> None:
        """Queue the requests that have come by now. They are lost if the queue is full."""
        while self._arrivals_ms[self._upcoming] <= self._now_ms:
            in_rows = len(self._prefilling) + len(self._decoding)
            if len(self._waiting) + in_rows < self._max_in_system:
                heappush(self._waiting, (self._places[self._upcoming], self._upcoming))
            self._upcoming += 1

    def _admit(self) -> None:
        free = self._max_batch - len(self._prefilling) - len(self._decoding)
        while free and self._waiting:
            _, request = heappop(self._waiting)
            self._admitted[request] = self._now_ms
            self._prefilling.append((request, self._prompts[request]))
            free -= 1
            self._rows[request] = self._max_batch - free

    def _step_with_prompts(self) -> None:
        rows = len(self._decoding)
        room = left = self._room_tokens[rows]
        begun = 0
        for request, tokens in self._prefilling:
            if tokens > left:
                self._prefilling[begun] = (request, tokens - int(left))
                left -= int(left)
                break
            left -= tokens
            begun += 1
        rows += begun
        self._now_ms += self._decode_ms[rows] + self._token_ms[rows] * (room - left)
        for request, _ in self._prefilling[:begun]:
            self._first[request] = self._now_ms
            heappush(self._decoding, (self._step + self._answers[request], request))
        del self._prefilling[:begun]
        self._step += 1

    def _steps_without(self) -> None:
        """Take all steps up to an answer's end, or until an arrival can get a row."""
        rows = len(self._decoding)
        step_ms = self._decode_ms[rows]
        steps = self._decoding[0][0] - self._step
        until_ms = self._arrivals_ms[self._upcoming] - self._now_ms
        if rows < self._max_batch and until_ms < steps * step_ms:
            steps = max(math.ceil(until_ms / step_ms), 1)
        self._now_ms += steps * step_ms
        self._step += steps
