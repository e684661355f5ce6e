"""Estimates a step's time from its tokens: measured at warm-up, corrected by every step."""

import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.core.prompt_costs import PRIOR_ERROR, Point, PromptCosts
from inference_api.core.running_mean import RunningMean
from inference_api.request import SamplingParams
from inference_api.runner import Draw, ModelRunner, RowStep, place_own_pages

SINGLE_SIZES = 8  # every size up to this is measured, then four sizes per doubling
RUNS = 5
RUNS_S = 0.05  # a size is not run again once its runs took this long
MEASURING_S = 1.5  # no further size is measured once measuring took this long
CONTEXT_TOKENS = 64  # tokens in each row's cache while measuring, if there is room
PROMPT_TOKENS = 64
PROMPT_RUNS = 2
TIMED_STEPS = 3  # the fastest of this many steps times a size that warm-up did not measure

SCALE_RATE = 0.1  # learning rate of the speed that all steps share
PUBLISH_PERIOD_S = 0.25
SPEED_S = 5.0  # the published mean speed covers the last steps of this total time
SIZE_RATE = 0.02  # learning rate of a size's own deviation
MAX_RATIO = 2.0  # a step off by more than this factor is an outlier of its size
FORGET_STEPS = 64  # learned deviations are multiplied by FORGET once in this many steps
FORGET = 0.9
DELAY_RATE = 0.01  # learning rate of the mean delay by interruptions
MAX_DELAY = 20.0  # upper bound of a turn's delay, as a multiple of its expected time
NOISE_RATE = 0.02  # learning rate of the error of a size's estimate
SIZE_STEPS = 2 / SIZE_RATE - 1  # effective number of steps in a mean at SIZE_RATE
LOOP_RATE = 0.05  # learning rate of the loop's time outside the step
MAX_LOOP_RATIO = 4.0  # a loop time above this multiple of its mean is an interruption


class Contents(NamedTuple):
    """The numbers of rows and tokens in a step."""

    rows: int  # rows that decode
    tokens: int  # tokens that draw: one for each of these rows, and their drafted tokens
    prompt_tokens: int


class StepCount(NamedTuple):
    """The number of steps with about `tokens` tokens that draw, and their prompt tokens."""

    tokens: int
    steps: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class StepSpeed:
    """Step times at the mean speed of the last SPEED_S of steps, published for other threads.

    A step with n decoding rows and p prompt tokens takes `decode`(n) + p x `prompt_token`(n); for
    n = 0, `decode`(1) counts. `speed` is the present speed relative to the speed at warm-up.
    """

    decode: Sequence[Point] = ()
    prompt_token: Sequence[Point] = ()
    speed: float = 1.0
    steps: int = 0  # since start
    steps_s: float = 0.0  # since start, inside the model
    counts: Sequence[StepCount] = ()  # counts all steps since start, by ascending tokens
    measured_at_s: float | None = None  # seconds since 1970


@dataclass(slots=True)
class MeanScale:
    """The mean of the scale over the last SPEED_S of steps, weighted by time. For one thread."""

    mean: float = 0.0
    seconds: float = 0.0

    def learn(self, scale: float, seconds: float) -> None:
        self.seconds = min(self.seconds + seconds, SPEED_S)
        self.mean += min(seconds / self.seconds, 1.0) * (scale - self.mean)


class StepCosts:
    """Estimates the seconds of a step from its tokens, and of the loop around it. Decode thread
    only; other threads may read `speed`, which is replaced, never changed.

    A factor common to all sizes follows the speed, which falls when contexts grow or other
    processes take the cores. Each size also has a correction of its own, which changes slowly. The
    first steps of a size that warm-up left out measure it.
    """

    def __init__(
        self, seconds: Mapping[int, float], max_tokens: int, max_rows: int | None = None
    ) -> None:
        """`seconds` has measured times by size, or is empty; larger sizes are extrapolated from the
        last two. `max_rows` is the most tokens of a step without drafts, by default `max_tokens`.
        """
        self.prompts = PromptCosts()
        self.speed = StepSpeed()
        self._max_rows = max_rows or max_tokens
        self._sizes = _sizes(max_tokens)
        self._place_of = [bisect_right(self._sizes, n) - 1 for n in range(max_tokens + 1)]
        self._seconds = np.ones(max_tokens + 1)  # measured, for each number of tokens
        self._learned = array("d", self._seconds)  # the same with the corrections learned since
        self._view = np.frombuffer(self._learned)
        ends = [*self._sizes[1:], max_tokens + 1]
        self._places = [range(*each) for each in zip(self._sizes, ends, strict=True)]
        self._scale = 1.0
        self._mean_scale = MeanScale()
        self._delay_ratio = 1.0  # running mean of actual / expected time, interruptions included
        self._num_learned = 0
        self._num_steps = 0
        self._steps_s = 0.0
        self._steps = [0] * len(self._sizes)
        self._prompt_tokens = [0] * len(self._sizes)
        self._noise = [PRIOR_ERROR**2] * len(self._sizes)  # mean squares of relative errors
        # Steps seen of each size; they decay as the corrections do.
        self._counts = [0.0] * len(self._sizes)
        num_places = self._max_rows.bit_length() + 1
        self._loop = [RunningMean(LOOP_RATE) for _ in range(num_places)]
        self._mean_loop = [RunningMean(DELAY_RATE) for _ in range(num_places)]
        self._timed: dict[int, list[tuple[float, int]]] = {}  # first steps of unmeasured sizes
        self._measured: dict[int, float] = {}
        self._untimed = set(range(len(self._sizes)))
        self._start(seconds)

    def measure(self, runner: ModelRunner, clock: Callable[[], float] = time.perf_counter) -> None:
        """Time steps of a runner. Overwrites its pages."""
        room_tokens = place_own_pages(runner)
        seconds: dict[int, float] = {}
        begun_s = clock()
        # Powers of two come first, because there may be no time for the others.
        for num_tokens in sorted(self._sizes, key=lambda size: size.bit_count() > 1):
            rows = _step_of(runner, num_tokens, room_tokens)
            if rows is None:
                continue
            times: list[float] = []
            while len(times) < RUNS and sum(times) < RUNS_S:
                started_s = clock()
                runner.step(rows)
                times.append(clock() - started_s)
            seconds[num_tokens] = min(times)
            if clock() - begun_s > MEASURING_S:
                break
        self.warmed_up(seconds)

    def warmed_up(self, seconds: Mapping[int, float]) -> None:
        """Start from measured seconds by size. If a larger step took less time than a smaller one,
        the smaller one was interrupted, and gets the time of the larger one."""
        least_s, of_size = math.inf, {}
        for num_tokens in sorted(seconds, reverse=True):
            least_s = of_size[num_tokens] = min(least_s, seconds[num_tokens])
        self._start(of_size)

    def measure_prompt(
        self, runner: ModelRunner, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Time a prompt in a step of its own, after `measure`. Overwrites the runner's pages."""
        if not self._measured:
            return
        num_tokens = min(PROMPT_TOKENS, place_own_pages(runner) - 1)
        times = []
        for _ in range(PROMPT_RUNS):
            started_s = clock()
            runner.step([RowStep(0, 0, [0] * num_tokens)])
            times.append(clock() - started_s)
        self.prompts.learn(0, num_tokens, (min(times) - self.step_s(1)) / self._scale)

    def step_s(self, num_tokens: int) -> float:
        """Returns the seconds of a step of `num_tokens` tokens."""
        learned = self._learned
        return self._scale * (learned[num_tokens] if num_tokens < len(learned) else learned[-1])

    def up_to(self, num_tokens: int, more_tokens: int) -> NDArray[np.float64]:
        """Returns the seconds of steps of `num_tokens` to `num_tokens + more_tokens` tokens."""
        return self._scale * self._view[num_tokens : num_tokens + more_tokens + 1]

    def loop_s(self, rows: int) -> float:
        """Returns the seconds of a turn of about this many rows outside its step, uninterrupted."""
        return _nearest(self._loop, rows)

    def turn_s(self, rows: int) -> float:
        """Returns the mean seconds of a turn in which `rows` decode, interruptions included."""
        return self._delay_ratio * self.step_s(max(rows, 1)) + _nearest(self._mean_loop, rows)

    def prompt_token_s(self, rows: int) -> float | None:
        """Returns the seconds that a prompt token adds to a step; None before the first prompt."""
        relative_s = self.prompts.token_s(rows)
        return None if relative_s is None else self._scale * relative_s

    def learn_turn(self, contents: Contents, model_s: float, loop_s: float) -> None:
        """Learn how many seconds a turn took in the model, and in the rest of the loop."""
        rows, tokens, prompt_tokens = contents
        self._num_steps += 1
        self._count(contents, model_s)
        if prompt_tokens:
            if self._measured and model_s > 0.0:
                self._learn_prompt(contents, model_s + loop_s)
            return
        self.learn(tokens, model_s)
        loop = self._loop[rows.bit_length()]
        loop.learn(min(loop_s, MAX_LOOP_RATIO * loop.mean) if loop.count else loop_s)
        self._mean_loop[rows.bit_length()].learn(min(loop_s, MAX_DELAY * (model_s + loop.mean)))

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Learn that a step of `num_tokens` tokens took `seconds`."""
        if seconds <= 0.0 or not 0 < num_tokens < len(self._learned):
            return
        place = self._place_of[num_tokens]
        if place in self._untimed:
            self._time(place, num_tokens, seconds)
            return
        self._num_learned += 1
        if self._num_learned == 1:
            self._scale = seconds / self._learned[num_tokens]
        learned = self._learned
        ratio = bounded = seconds / (self._scale * learned[num_tokens])
        if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            bounded = MAX_RATIO if ratio > 1 else 1 / MAX_RATIO
        self._delay_ratio += DELAY_RATE * (min(ratio, MAX_DELAY) - self._delay_ratio)
        of_all = 1 + max(SCALE_RATE, 1 / self._num_learned) * (bounded - 1)
        self._scale *= of_all
        self._mean_scale.learn(self._scale, seconds)
        self._noise[place] += NOISE_RATE * ((bounded - 1) ** 2 - self._noise[place])
        if ratio == bounded:
            correction = 1 + SIZE_RATE * (ratio / of_all - 1)
            for size in self._places[place]:
                learned[size] *= correction
            self._counts[place] += 1
        if self._num_learned % FORGET_STEPS == 0:
            self._view[:] = self._seconds + FORGET * (self._view - self._seconds)
            self._counts = [FORGET * count for count in self._counts]

    def publish(self, now_s: float) -> None:
        """Replace `speed`; `now_s` is seconds since 1970. Does nothing if there was no step since,
        or PUBLISH_PERIOD_S has not passed, because publishing delays the next step."""
        last_s = self.speed.measured_at_s
        if last_s is not None:
            is_soon = abs(now_s - last_s) < PUBLISH_PERIOD_S
            if is_soon or self._num_steps == self.speed.steps:
                return
        sizes = [
            (place, size)
            for place, size in enumerate(self._sizes)
            if size <= self._max_rows and place not in self._untimed
        ]
        scale = self._mean_scale.mean or self._scale
        delayed = self._delay_ratio * scale
        self.speed = StepSpeed(
            [
                Point(
                    size,
                    delayed * self._learned[size] + _nearest(self._mean_loop, size),
                    self._error_s(place),
                )
                for place, size in sizes
            ],
            [
                Point(rows, scale * seconds, scale * error_s)
                for rows, seconds, error_s in self.prompts.points()
            ],
            1 / scale if self._measured else 1.0,
            self._num_steps,
            self._steps_s,
            [
                StepCount(*each)
                for each in zip(self._sizes, self._steps, self._prompt_tokens, strict=True)
                if each[1]
            ],
            now_s,
        )

    def _count(self, contents: Contents, model_s: float) -> None:
        place = self._place_of[min(max(contents.tokens, 1), len(self._place_of) - 1)]
        self._steps_s += model_s
        self._steps[place] += 1
        self._prompt_tokens[place] += contents.prompt_tokens

    def _learn_prompt(self, contents: Contents, turn_s: float) -> None:
        """Learn the cost of a turn's prompts and, once that is known, the common speed."""
        rows, tokens, prompt_tokens = contents
        decode_s = self.step_s(max(tokens, 1)) + self.loop_s(rows)
        if self.prompts.knows(rows):
            expected_s = decode_s + prompt_tokens * (self.prompt_token_s(rows) or 0.0)
            ratio = min(max(turn_s / expected_s, 1 / MAX_RATIO), MAX_RATIO)
            self._scale *= 1 + SCALE_RATE * (ratio - 1)
            self._mean_scale.learn(self._scale, turn_s)
        self.prompts.learn(rows, prompt_tokens, (turn_s - decode_s) / self._scale)

    def _error_s(self, place: int) -> float:
        """Returns the standard error of a turn's time, from the errors of speed, size and loop."""
        size = self._sizes[place]
        weights = SCALE_RATE / (2 - SCALE_RATE) + 1 / (1 + min(self._counts[place], SIZE_STEPS))
        loop = self._mean_loop[size.bit_length()]
        loop_error_s = loop.error if loop.count > 1 else self.loop_s(size)
        return math.hypot(self.step_s(size) * math.sqrt(self._noise[place] * weights), loop_error_s)

    def _time(self, place: int, num_tokens: int, seconds: float) -> None:
        """Learn from one of the first steps of a size that was not measured."""
        if not self._measured:
            self._scale = seconds / num_tokens  # a rough estimate until some size is measured
        of_place = self._timed.setdefault(place, [])
        of_place.append((seconds / self._scale if self._measured else seconds, num_tokens))
        if len(of_place) == TIMED_STEPS:
            least_s, size = min(of_place)
            if not self._measured:
                self._scale = 1.0
            self._untimed.discard(place)
            del self._timed[place]
            self._measure({**self._measured, size: least_s})

    def _start(self, seconds: Mapping[int, float]) -> None:
        """Start from the measured seconds of some sizes. Other sizes are interpolated."""
        if seconds:
            self._scale, self._num_learned = 1.0, 0
            self._mean_scale = MeanScale()
            self._untimed.clear()
            self._timed.clear()
        self._learned[:] = array("d", self._seconds)
        self._measure(seconds)

    def _measure(self, seconds: Mapping[int, float]) -> None:
        """Take new measured times, and keep the corrections learned for each size."""
        self._measured = dict(seconds)
        corrections = self._view[1:] / self._seconds[1:]
        self._seconds = np.array(_interpolated(seconds or {1: 1.0}, len(self._seconds) - 1))
        self._view[1:] = self._seconds[1:] * corrections
        self._view[0] = 0.0


def _nearest(means: Sequence[RunningMean], rows: int) -> float:
    """Returns the mean of the group, by powers of two, that is nearest to this number of rows."""
    place = rows.bit_length()
    if means[place].count:
        return means[place].mean
    seen = [each for each, of_rows in enumerate(means) if of_rows.count]
    return means[min(seen, key=lambda each: abs(each - place))].mean if seen else 0.0


def _sizes(max_tokens: int) -> list[int]:
    sizes = list(range(1, min(SINGLE_SIZES, max_tokens) + 1))
    while sizes[-1] < max_tokens:
        step = 2 ** (sizes[-1].bit_length() - 3)
        sizes.append(min(sizes[-1] + step, max_tokens))
    return sizes


def _step_of(runner: ModelRunner, num_tokens: int, room_tokens: int) -> list[RowStep] | None:
    """Returns a step of `num_tokens` tokens, spread over all rows; None if they lack the room."""
    num_rows = min(num_tokens, runner.max_rows)
    most_tokens = -(-num_tokens // num_rows)
    if most_tokens > room_tokens:
        return None
    start = min(CONTEXT_TOKENS, room_tokens - most_tokens)
    draw = Draw(SamplingParams(temperature=0.0), (0,), ())
    steps = []
    for row in range(num_rows):
        own_tokens = num_tokens // num_rows + (row < num_tokens % num_rows)
        steps.append(RowStep(row, start, [0] * own_tokens, [draw] * own_tokens))
    return steps


def _interpolated(seconds: Mapping[int, float], max_tokens: int) -> list[float]:
    """Returns seconds for 0 to `max_tokens` tokens. They never fall, and are positive from 1 on."""
    measured = {0: 0.0, **seconds} if len(seconds) == 1 else dict(seconds)
    sizes = sorted(measured)
    values = [0.0]
    for num_tokens in range(1, max_tokens + 1):
        place = min(max(bisect_right(sizes, num_tokens), 1), len(sizes) - 1)
        low, high = sizes[place - 1], sizes[place]
        slope = (measured[high] - measured[low]) / (high - low)
        value = measured[low] + slope * (num_tokens - low)
        if num_tokens < low:
            value = max(value, measured[low] * num_tokens / low)
        values.append(max(value, values[-1]))
    return values
