"""Estimates how slow a server's steps were from moment to moment, from its counts of steps.

Two moments may differ because steps had other contents, whose times are not known well beforehand,
or because the machine's speed changed. Contents change much from one moment to the next, but the
speed changes little. So the step times are those with which the speed changes least. Pure: any
thread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.optimize import least_squares

from benchmarking.analysis.service_curve import ServiceCurve, Speed, at
from common.numerics import FloatArray

SPEED_CHANGE = 0.05  # relative change of speed between moments; larger changes are outliers
KNOWN_TO = 1.0  # error of the step times that a server reports, as a logarithm

StepCount = tuple[  # tokens drawn, the number of steps that drew as many, and their prompt tokens
    Annotated[int, Field(ge=1, le=1_048_576)],
    Annotated[int, Field(ge=0)],
    Annotated[int, Field(ge=0)],
]


class CountedSpeed(Speed):
    """The report of a server that counts its steps: `steps_s` are the seconds of all of them since
    its start."""

    steps_s: Annotated[float, Field(ge=0)] = 0.0
    steps_by_tokens: Annotated[list[StepCount], Field(max_length=256)] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepsWithin:
    """The time from a moment to the next: the seconds that steps took, and counts of contents."""

    from_s: float
    steps_s: float
    counts: Sequence[StepCount]


def slownesses(moments: Sequence[StepsWithin], reported: ServiceCurve) -> list[float]:
    """Returns each moment's slowness relative to the mean of all. `reported` are the step times
    that the server reports, from which the fit starts."""
    tokens = sorted({tokens for each in moments for tokens, *_ in each.counts})
    steps, prompt_tokens = (_by_tokens(moments, tokens, which) for which in (1, 2))
    decode_ms = steps * [at(reported.decode, each) for each in tokens]
    prompts_ms = prompt_tokens * fmean(point.ms for point in reported.prompt_token)
    decode_knots = [2**power for power in range(tokens[-1].bit_length())]
    of_decode = _between(decode_knots, tokens)
    of_prompts = _between(sorted({1, decode_knots[-1]}), tokens)
    steps_s = np.array([each.steps_s for each in moments])

    def expected_s(logs: FloatArray) -> FloatArray:
        decode, prompts = logs[: len(decode_knots)], logs[len(decode_knots) :]
        found_ms = decode_ms @ np.exp(of_decode @ decode) + prompts_ms @ np.exp(
            of_prompts @ prompts
        )
        return np.asarray(found_ms / 1000)

    def misses(logs: FloatArray) -> FloatArray:
        changes = np.diff(np.log(steps_s / expected_s(logs)))
        return np.concatenate((changes / SPEED_CHANGE, logs / KNOWN_TO))

    start = np.zeros(of_decode.shape[1] + of_prompts.shape[1])
    found_s = expected_s(least_squares(misses, start, loss="soft_l1").x)
    mean = math.fsum(steps_s) / math.fsum(found_s)
    return [float(each) for each in steps_s / (mean * found_s)]


def counts_since(now: Sequence[StepCount], before: Sequence[StepCount]) -> list[StepCount]:
    """Returns the counts between two answers of a server."""
    known = {tokens: each for tokens, *each in before}
    found = []
    for tokens, steps, prompt_tokens in now:
        steps_before, prompt_tokens_before = known.get(tokens, (0, 0))
        found.append((tokens, steps - steps_before, prompt_tokens - prompt_tokens_before))
    return found


def _by_tokens(moments: Sequence[StepsWithin], tokens: Sequence[int], which: int) -> FloatArray:
    """Returns counts [moments, tokens]: steps for `which` 1, prompt tokens for 2."""
    found = np.zeros((len(moments), len(tokens)))
    for row, moment in zip(found, moments, strict=True):
        for count in moment.counts:
            row[tokens.index(count[0])] = count[which]
    return found


def _between(knots: Sequence[int], tokens: Sequence[int]) -> FloatArray:
    """Returns weights [tokens, knots] of linear interpolation between knots on a log scale."""
    columns = [np.interp(np.log2(tokens), np.log2(knots), each) for each in np.eye(len(knots))]
    return np.array(columns).T
