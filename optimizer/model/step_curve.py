"""Measured step times of a continuous-batching server, by the contents of a step.

A step of n decoding rows and p prompt tokens takes a(n) + c(n) p milliseconds. Both curves are
points with linear interpolation, so they are monotone if the points are. Below the first point its
value holds; above the last, the line through the last two. Immutable: any thread.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray

MIN_CHUNK_TOKENS = 8  # prompt tokens that fit into a step under any budget
NO_LIMIT = 1e12  # tokens; finite, so that work / room is 0 and not undefined


@dataclass(frozen=True, slots=True)
class Points:
    """Times measured at ascending numbers of rows."""

    rows: tuple[float, ...]
    ms: tuple[float, ...]
    errors_ms: tuple[float, ...]  # standard errors; 0 if unknown

    def at(self, rows: FloatArray) -> FloatArray:
        """Returns the times in ms at any numbers of rows, never below 0."""
        found: FloatArray = np.interp(rows, self.rows, self.ms)
        if len(self.rows) > 1:
            slope = (self.ms[-1] - self.ms[-2]) / (self.rows[-1] - self.rows[-2])
            found = found + slope * np.maximum(rows - self.rows[-1], 0.0)
        return np.maximum(found, 0.0)


NO_OVERHEAD = Points((1.0,), (0.0,), (0.0,))


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Step times, and how prompts are cut to fit into steps.

    A step has at most `chunk_tokens` prompt tokens. While rows decode, all its tokens together are
    at most `budget_tokens`, but `MIN_CHUNK_TOKENS` of prompts always fit.
    """

    decode: Points  # a(n)
    prompt_token: Points  # c(n)
    chunk_tokens: float = NO_LIMIT
    budget_tokens: float = NO_LIMIT
    overhead: Points = NO_OVERHEAD  # before the first token, outside of steps; by concurrency
    handling_ms: float = 0.0  # part of the overhead in which requests wait for each other
    speed_error: float = 0.0  # relative standard error of the speed of all steps together

    def room_tokens(self, rows: FloatArray) -> FloatArray:
        """Returns the prompt tokens that fit into a step besides the decoding rows."""
        left = np.maximum(self.budget_tokens - rows, MIN_CHUNK_TOKENS)
        return np.minimum(self.chunk_tokens, np.where(rows > 0, left, NO_LIMIT))

    @property
    def measured_rows(self) -> float:
        """The most rows with which steps were measured."""
        return self.decode.rows[-1]

    @property
    def has_errors(self) -> bool:
        points = (self.decode, self.prompt_token, self.overhead)
        errors = (*(error for each in points for error in each.errors_ms), self.speed_error)
        return any(error > 0 for error in errors)
