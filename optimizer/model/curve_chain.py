"""The birth-death chain of a replica whose step times are a measured curve.

The chain is that of `queueing` with the rates of `curve_rates`, and three corrections found with a
token-level simulation of the same steps (`make bench-simulator` compares them):

- A prompt stops the rows that decode, and the newest prompt goes first, so the number in service
  varies more than the rates imply. With exponential times this is a chain in (n, stages of prompts
  left). It leaves a level downwards only when no prompt is left, so it is solved level by level. If
  output lengths vary less, with squared coefficient of variation v, arrivals find work half done,
  and n varies by 2 / (1 + v) times as much.
- Requests wait less for a row if output lengths vary less. The queue is geometric, with a mean from
  two moments: Kimura's interpolation (Operations Research 34, 1986) between M/M/N and Cosmetatos'
  M/D/N.
- Prompts so long that no two fit into a step wait for those before them, as in M/D/1.

Immutable: any thread.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from common.numerics import BoolArray, FloatArray, IntArray
from optimizer.model.curve_rates import MOST_BUSY, Shape, StateRates, all_rates
from optimizer.model.queueing import Performance, queue_sums
from optimizer.model.step_curve import StepCurve

# Stages of a prompt, whose sum varies nearly as little as its true time, and prompts tracked at
# once.
STAGES, MAX_PROMPTS = 3, 16
MAX_LEVELS = 512  # states tracked with prompts; higher ones use the last correction
NEGLIGIBLE = 1e-3  # smaller corrections of a ratio of weights are not computed
MAX_HANDLING = 0.99  # share of busy time above which there is no mean wait

# Bounds within which the chain agrees with the simulation to 5 %; see docs/optimizer.md.
MIN_BATCH, MIN_OUT_TOKENS = 8, 16
MAX_PROMPT_SHARE, MAX_ROOM_SHARE, MAX_LONG_SHARE, MAX_PREFILL = 0.25, 0.4, 0.2, 0.5
EVEN_PROMPT_SHARE = 0.175  # for answers of equal length, when prompts cause most of the variance
MAX_LOAD = 0.9
MAX_FALL = 1.1  # highest rate over the rate with all rows; above it, more load means less output


class Solved(NamedTuple):
    """One replica at one arrival rate: the fields of `Performance` in order, then another one."""

    concurrency: float
    service_ms: float
    wait_ms: float
    in_service: float
    throughput_per_ms: float
    loss: float
    itl_ms: float
    ttft_ms: float
    utilization: float
    above_measured: float  # share of time with more in service than steps were measured with


class _Probabilities(NamedTuple):
    below: FloatArray  # probabilities of the states 0..N - 1
    open: float  # probability that all rows are taken and the queue has room
    full: float
    queued: float  # mean number waiting

    @property
    def admitted(self) -> float:
        return max(float(self.below.sum()) + self.open, 1e-300)


@dataclass(frozen=True)
class CurveReplica:
    """A replica with `max_batch` rows and `max_queue` places to wait."""

    curve: StepCurve
    shape: Shape
    out_scv: float  # variance of output lengths over their squared mean
    max_batch: int
    max_queue: int

    @property
    def is_valid(self) -> bool:
        takes_time = float(self.curve.decode.at(np.ones(1))[0]) > 0
        return takes_time and self.max_batch >= 1 and self.max_batch + self.max_queue > 1

    @property
    def rates(self) -> StateRates:
        return self._rates[0]

    @property
    def saturated(self) -> StateRates:
        return self._rates[1]

    @cached_property
    def _rates(self) -> tuple[StateRates, StateRates]:
        return all_rates(self.curve, self.shape, self.max_batch)

    @property
    def max_rate_per_ms(self) -> float:
        return float(self.saturated.rate_per_ms[0])

    def doubts(self, rate_per_ms: float) -> list[str]:
        """Returns why the chain may be off by more than 5 % at this rate; empty if it is not."""
        top, shape = self.saturated, self.shape
        is_long = top.steps[0] > 1
        claim_ms = max(top.claim_ms[0], top.step_ms[0] * min(top.steps[0], 1.0))
        answer_ms = shape.out_tokens * self.rates.decode_ms[0]
        shares = (
            (
                rate_per_ms * top.prompt_ms[0],
                min(MAX_PROMPT_SHARE, EVEN_PROMPT_SHARE * (1 + self.out_scv)),
                "prompts take {:.0%} of the time",
            ),
            (
                rate_per_ms * claim_ms,
                MAX_LONG_SHARE if is_long else MAX_ROOM_SHARE,
                "prompts take {:.0%} of steps' room",
            ),
            (
                top.first_token_ms[0] / max(answer_ms, 1e-300),
                MAX_PREFILL,
                "prefill takes {:.0%} of the time of an answer",
            ),
            (rate_per_ms / self.max_rate_per_ms, MAX_LOAD, "the load is {:.0%} of capacity"),
            (
                rate_per_ms * self.curve.handling_ms,
                MAX_LOAD,
                "to handle requests takes {:.0%} of the time",
            ),
        )
        found = [text.format(share) for share, bound, text in shares if share > bound]
        best = int(self.rates.rate_per_ms.argmax())
        if self.rates.rate_per_ms[best] > MAX_FALL * self.max_rate_per_ms:
            found.append(f"with all rows taken fewer depart than with {best + 1}")
        if self.max_batch < MIN_BATCH:
            found.append(f"a batch of {self.max_batch} is below {MIN_BATCH}")
        if shape.out_tokens < MIN_OUT_TOKENS:
            found.append(f"{shape.out_tokens:g} output tokens are below {MIN_OUT_TOKENS}")
        return found

    def solve(self, rate_per_ms: float) -> Solved:
        """Returns the chain in steady state at any rate > 0."""
        rows, shape = self.max_batch, self.shape
        p = self._weights(rate_per_ms)
        throughput = self._throughput(rate_per_ms, p)
        states = np.arange(rows)
        in_service = float(states @ p.below) + rows * (p.open + p.full)
        # A request that comes during a step waits for its end, unless it finds no step running.
        residual_ms = float(self.rates.residual_ms[:-1] @ p.below[1:]) / p.admitted
        prefill_ms = float(self._prefill_ms(throughput) @ np.append(p.below, p.open)) / p.admitted
        service_ms = in_service / throughput
        if shape.out_tokens > 1:
            itl_ms = (service_ms - residual_ms - prefill_ms) / (shape.out_tokens - 1)
            itl_ms = max(itl_ms, float(self.rates.decode_ms[0]))  # if the chain does not hold
        else:
            itl_ms = float(self.rates.step_ms @ p.below + self.saturated.step_ms[0] * p.open)
        wait_ms = p.queued / throughput + residual_ms
        overheads_ms = self.curve.overhead.at(np.append(states + 1.0, rows))
        overhead_ms = float(overheads_ms @ np.append(p.below, p.open)) / p.admitted
        measured = min(int(self.curve.measured_rows), rows - 1)
        is_above = rows > self.curve.measured_rows
        return Solved(
            concurrency=(float((states + 1) @ p.below) + rows * p.open) / p.admitted,
            service_ms=service_ms,
            wait_ms=wait_ms,
            in_service=in_service,
            throughput_per_ms=throughput,
            loss=max(1 - throughput / rate_per_ms, 0.0),
            itl_ms=itl_ms,
            ttft_ms=wait_ms + prefill_ms + overhead_ms + self._handling_wait_ms(rate_per_ms),
            utilization=min(in_service / rows, 1.0),
            above_measured=is_above * (float(p.below[measured + 1 :].sum()) + p.open + p.full),
        )

    def _handling_wait_ms(self, rate_per_ms: float) -> float:
        """Returns how much longer the handling of a request takes because of others, by the mean
        sojourn time s / (1 - rate s) of processor sharing (Kleinrock, JACM 14, 1967)."""
        handling_ms = self.curve.handling_ms
        share = min(rate_per_ms * handling_ms, MAX_HANDLING)
        return handling_ms * share / (1 - share)

    def _throughput(self, rate_per_ms: float, p: _Probabilities) -> float:
        """Returns the admitted rate; in overload the departure rate, because there the queue's
        shape gives the right length but not the right loss."""
        if rate_per_ms < self.max_rate_per_ms:
            return rate_per_ms * p.admitted
        departs = float(self.rates.rate_per_ms[:-1] @ p.below[1:])
        return departs + self.max_rate_per_ms * (p.open + p.full)

    def _weights(self, rate_per_ms: float) -> _Probabilities:
        """Returns the probabilities of the states."""
        log_weight = np.concatenate(([0.0], np.cumsum(self._log_ratios(rate_per_ms))))
        load = rate_per_ms / self.max_rate_per_ms
        thinner = self._queue_factor(load)
        # A wait is as likely as with exponential lengths, but shorter.
        thinned = thinner * load
        ratio = thinned / (1 - load + thinned) if load < 1 else load ** (1 / thinner)
        scale = (1 - ratio) / (1 - load) if abs(1 - load) > 1e-9 else 1 / thinner
        log_weight[-1] += math.log(scale)
        tail = queue_sums(np.array([math.log(ratio)]), np.array([float(self.max_queue)]))
        weight = np.exp(log_weight - log_weight.max())
        below = weight[:-1] * float(tail.scale[0])
        full, open_, queued = (
            weight[-1] * float(v[0]) for v in (tail.full, tail.open, tail.length)
        )
        total = float(below.sum()) + open_ + full
        return _Probabilities(below / total, open_ / total, full / total, queued / total)

    def _queue_factor(self, load: float) -> float:
        """Returns the mean queue relative to exponential service; 0.5 for equal answers."""
        top, rows = self.saturated, self.max_batch
        # The answer's length decides only a part of the service time, and of the server's work.
        answer_share = 1 - float(top.prompt_ms[0] * top.rate_per_ms[0])
        held_ms = rows / self.max_rate_per_ms
        prefill_ms = float(self._prefill_ms(self.max_rate_per_ms)[-1])
        share = max(min(answer_share, 1 - prefill_ms / held_ms), 0.0)
        scv = self.out_scv * share**2
        load = min(max(load, 1e-3), 0.999)
        crowd = (rows - 1) * (math.sqrt(4 + 5 * rows) - 2) / (16 * rows * load)
        constant = min((1 + (1 - load) * crowd) / 2, 1.0)  # M/D/N over M/M/N
        if scv > 1:
            return (1 + scv) / 2
        return (1 + scv) / (2 * scv + (1 - scv) / constant)

    def _prefill_ms(self, rate_per_ms: float) -> FloatArray:
        """Returns the time from the start of a request's first step to its first token, by the
        number of requests it meets: 0..N - 1, and N with all rows taken.

        A prompt shares its step with the prompts that came during the previous step. If no two
        prompts fit into a step, it waits for the prompts before it instead.
        """
        rates, top = self.rates, self.saturated
        residual_ms = np.concatenate(([0.0], rates.residual_ms))  # per number of requests met
        arrived = rates.rate_per_ms * residual_ms[:-1]
        beside = rate_per_ms * residual_ms[:-1] + np.concatenate(([0.0], arrived[:-1]))
        fits = np.maximum(1 / np.maximum(rates.steps, 1e-12) - 1, 0.0)
        shared_ms = rates.prompt_ms * np.minimum(beside, fits) * (rates.turn_ms == 0)
        busy = np.minimum(rate_per_ms * np.append(rates.claim_ms, top.claim_ms), MOST_BUSY)
        waited_ms = np.append(rates.turn_ms, top.turn_ms) * busy / (2 * (1 - busy))
        waited_ms[0] = 0.0  # this request meets no other
        first_token_ms = np.append(rates.first_token_ms, top.first_token_ms)
        prefill_ms: FloatArray = first_token_ms + waited_ms + np.append(shared_ms, 0.0)
        return prefill_ms

    def _log_ratios(self, rate_per_ms: float) -> FloatArray:
        """Returns log p_n - log p_{n-1} for n = 1..N."""
        rates = self.rates
        plain: FloatArray = np.log(rate_per_ms / rates.rate_per_ms)
        strength = rates.prompt_ms / np.maximum(rates.prompt_ms + rates.decode_ms, 1e-300)
        strength = strength / np.maximum(rates.steps, 1.0) * 2 / (1 + self.out_scv)
        if not (strength * rate_per_ms * rates.prompt_ms > NEGLIGIBLE).any() or plain.size < 2:
            return plain
        followed = np.array(list(self._stopped_ratios(rate_per_ms)))
        shift = followed - plain[: followed.size]
        shift = np.concatenate((shift, np.full(plain.size - shift.size, shift[-1])))
        stopped = plain + shift
        # If both are unbalanced in the same direction, more variance means less slope.
        is_flatter = (plain * stopped > 0) & (np.abs(stopped) < np.abs(plain))
        spread = np.where(is_flatter, plain / np.where(is_flatter, stopped, 1.0) - 1, 0.0)
        return np.where(
            is_flatter, plain / (1 + spread * strength), plain + shift * np.minimum(strength, 1.0)
        )

    def _stopped_ratios(self, rate_per_ms: float) -> Iterator[float]:
        """Yields the ratios of the chain in (n, stages of prompts left).

        In level n, `prompts` are the shares with each number of stages left, the most first, and
        `free` the share with none; they sum to 1. Stages end at `stage_rate`. An arrival adds a
        level and STAGES. A row's end leads from `free` to `free` one level below, as often as
        arrivals lead up from that level.
        """
        rates = self.rates
        prompts, free = [0.0] * (STAGES * MAX_PROMPTS), 1.0
        first = [0.0] * (STAGES - 1)
        answers_ms = self.shape.out_tokens * rates.decode_ms / rates.decoding
        levels = zip(rates.prompt_ms.tolist(), answers_ms.tolist(), strict=True)
        for _, (prompt_ms, answer_ms) in zip(range(MAX_LEVELS), levels, strict=False):
            stage_rate = STAGES / max(prompt_ms, 1e-300)
            leave = 1 / (rate_per_ms + stage_rate)
            most = sum(prompts[: STAGES + 1])  # with more prompts than are tracked
            level, after = [], 0.0
            for before in (most, *prompts[STAGES + 1 :], free, *first):
                after = (rate_per_ms * before + stage_rate * after) * leave
                level.append(after)
            now_free = rate_per_ms * answer_ms
            total = now_free + sum(level)
            prompts, free = [share / total for share in level], now_free / total
            yield math.log(total)


@dataclass(frozen=True, slots=True)
class CurveReplicas:
    """Replicas with service curves, with the methods of `queueing.Replica`; one entry per pair."""

    replicas: Sequence[CurveReplica]

    def take(self, pairs: IntArray) -> "CurveReplicas":
        return CurveReplicas([self.replicas[pair] for pair in pairs.tolist()])

    def is_valid(self) -> BoolArray:
        return np.array([each.is_valid for each in self.replicas], dtype=np.bool_)

    def idle_service_ms(self) -> FloatArray:
        return np.array([1 / float(each.rates.rate_per_ms[0]) for each in self.replicas])

    def max_rate_per_ms(self) -> FloatArray:
        return np.array([each.max_rate_per_ms for each in self.replicas])

    def analyze(self, rate_per_ms: FloatArray) -> Performance:
        rates = zip(self.replicas, rate_per_ms.tolist(), strict=True)
        return Performance.from_rows([replica.solve(rate)[:-1] for replica, rate in rates])
