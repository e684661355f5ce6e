"""What a step costs by the tokens in it: measured at warm-up, kept true by the steps themselves."""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from inference_api.engine.runner import Draw, ModelRunner, RowStep
from inference_api.request import SamplingParams

SINGLE_SIZES = 8  # up to so many tokens every number is measured, then four of each doubling
RUNS = 5
RUNS_S = 0.05  # after which a size is not run again
MEASURING_S = 1.5  # after which no further size is measured
CONTEXT_TOKENS = 64  # in the cache of each row, where there is room

SCALE_RATE = 0.1  # how fast the speed of all steps is learned,
SIZE_RATE = 0.02  # and how fast what is special about those of one size
MAX_RATIO = 2.0  # a step that took more or less than expected by this says nothing of its size
FORGET_STEPS = 64  # after which what was learned about sizes counts `FORGET` as much
FORGET = 0.9


class StepCosts:
    """Seconds of a step by its number of tokens. Decode thread only.

    All steps get slower together as contexts grow or a neighbour takes the cores, so that a step
    of one size says most about all of them, and the rest about sizes near its own.
    """

    def __init__(self, seconds: Mapping[int, float], max_tokens: int) -> None:
        """`seconds` of one size at least; of larger ones than those as the last two go on."""
        self._seconds = np.array(_interpolated(seconds, max_tokens))
        self._sizes = _sizes(max_tokens)
        self._corrections = np.ones(len(self._seconds))  # the same for all steps of about a size
        self._scale = 1.0
        self._num_learned = 0

    @classmethod
    def measured(
        cls, runner: ModelRunner, max_tokens: int, clock: Callable[[], float] = time.perf_counter
    ) -> Self:
        """Time steps of this runner. Overwrites the cache of all rows."""
        seconds: dict[int, float] = {}
        begun_s = clock()
        for num_tokens in _sizes(max_tokens):
            rows = _step_of(runner, num_tokens)
            if rows is None:
                break
            times: list[float] = []
            while len(times) < RUNS and sum(times) < RUNS_S:
                started_s = clock()
                runner.step(rows)
                times.append(clock() - started_s)
            seconds[num_tokens] = min(times)
            if clock() - begun_s > MEASURING_S:
                break
        return cls(seconds, max_tokens)

    def of(self, num_tokens: int) -> float:
        """Seconds that a step of so many tokens takes."""
        return self._scale * self._relative(num_tokens)

    def up_to(self, num_tokens: int, more_tokens: int) -> NDArray[np.float64]:
        """Seconds of steps of `num_tokens` to `num_tokens + more_tokens`."""
        sizes = slice(num_tokens, num_tokens + more_tokens + 1)
        return self._scale * self._seconds[sizes] * self._corrections[sizes]

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A step has taken so long."""
        if seconds <= 0.0 or num_tokens >= len(self._seconds):
            return
        self._num_learned += 1
        if self._num_learned == 1:
            self._scale = seconds / self._relative(num_tokens)
        ratio = seconds / self.of(num_tokens)
        bounded = min(max(ratio, 1 / MAX_RATIO), MAX_RATIO)
        of_all = 1 + max(SCALE_RATE, 1 / self._num_learned) * (bounded - 1)
        self._scale *= of_all
        if ratio == bounded:
            self._corrections[self._about(num_tokens)] *= 1 + SIZE_RATE * (ratio / of_all - 1)
        if self._num_learned % FORGET_STEPS == 0:
            self._corrections = 1 + FORGET * (self._corrections - 1)

    def _relative(self, num_tokens: int) -> float:
        num_tokens = min(num_tokens, len(self._seconds) - 1)
        return float(self._seconds[num_tokens] * self._corrections[num_tokens])

    def _about(self, num_tokens: int) -> slice:
        """The numbers of tokens that one of the sizes stands for: this one among them."""
        size = bisect_right(self._sizes, num_tokens)
        begin = self._sizes[size - 1] if size else 0
        end = self._sizes[size] if size < len(self._sizes) else len(self._seconds)
        return slice(begin, end)


def _sizes(max_tokens: int) -> list[int]:
    sizes = list(range(1, min(SINGLE_SIZES, max_tokens) + 1))
    while sizes[-1] < max_tokens:
        step = 2 ** (sizes[-1].bit_length() - 3)
        sizes.append(min(sizes[-1] + step, max_tokens))
    return sizes


def _step_of(runner: ModelRunner, num_tokens: int) -> list[RowStep] | None:
    """Tokens shared out among all rows; None where these are too short for them."""
    num_rows = min(num_tokens, runner.max_rows)
    most_tokens = -(-num_tokens // num_rows)
    if most_tokens > runner.max_seq_len:
        return None
    start = min(CONTEXT_TOKENS, runner.max_seq_len - most_tokens)
    draw = Draw(SamplingParams(temperature=0.0), (0,), ())
    steps = []
    for row in range(num_rows):
        own_tokens = num_tokens // num_rows + (row < num_tokens % num_rows)
        steps.append(RowStep(row, start, [0] * own_tokens, [draw] * own_tokens))
    return steps


def _interpolated(seconds: Mapping[int, float], max_tokens: int) -> list[float]:
    """For 0 to `max_tokens` tokens, and never less for more."""
    known = {0: 0.0, **seconds} if len(seconds) == 1 else dict(seconds)
    sizes = sorted(known)
    values = [0.0]
    for num_tokens in range(1, max_tokens + 1):
        place = min(max(bisect_right(sizes, num_tokens), 1), len(sizes) - 1)
        low, high = sizes[place - 1], sizes[place]
        slope = (known[high] - known[low]) / (high - low)
        value = known[low] + slope * (num_tokens - low)
        values.append(max(value, values[-1]))
    return values
