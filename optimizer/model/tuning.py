"""Tracks how much slower a server is now than its parameters say, with an extended Kalman filter.

Parameters are fitted once, but a machine's speed changes with its neighbours and its clock. Two
factors track it, one for decode steps and one for prefill. They are learned from observations: mean
TTFT and ITL at a known load and, if the server reports it, the time of its steps.

The filter uses logarithms of factors and observations, so that factors stay positive and errors are
relative. Factors follow a random walk. The model's predictions are linearised by central
differences, repeated around each corrected state (Welch and Bishop, An Introduction to the Kalman
Filter, TR 95-041, 2006; Bell and Cathey, The iterated Kalman filter update as a Gauss-Newton
method, 1993).

Means over a short time also differ by chance, because a long or short queue stays so for a while.
With Poisson arrivals the number present, N, has variance lambda dN/dlambda and a correlation time
of about dN/dlambda, so its mean over n requests has a relative error of E sqrt(2 / n), where E is
the elasticity of N to the load. The same holds for TTFT and ITL, each with its own elasticity, as
if the load had the relative error sqrt(2 / n), which is `load_error`. This is exact for many
servers; for one, the variance is at most twice that (Whitt, Asymptotic formulas for Markov
processes with applications to simulation, 1992).

An observation too far from the prediction is refused as an accident. After several in a row the
filter starts again from them. Pure: any thread; a `SpeedTuner` has one owner.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from common.numerics import FloatArray, scipy

FACTORS = 2  # one for decode steps, one for prefill
ITERATIONS = 4  # iterations of the correction: near capacity the model is far from a line
STEP = 0.01  # step of central differences, in a logarithm
PRIOR_SIGMA = 0.3  # deviation of a factor before any observation: about 30 %
DRIFT_SIGMA = 0.15  # deviation that a factor may gain in DRIFT_S
DRIFT_S = 60.0
MODEL_SIGMA = 0.05  # deviation of the model itself, with the right factors
GATE = 0.975  # share of usual observations that are accepted
MAX_REFUSALS = 3  # refusals in a row, after which the machine counts as changed
LARGEST_FACTOR = 100.0
MAX_VARIANCE = 100.0  # variance of a factor's logarithm


Mean = tuple[float | None, float]
"""A mean over some time at one load, None if it was not observed, and its relative standard error:
about the spread of single values over sqrt(requests)."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on the parameters' decode and prefill times, with relative errors."""

    decode: float = 1.0
    prefill: float = 1.0
    decode_error: float = PRIOR_SIGMA
    prefill_error: float = PRIOR_SIGMA


Predict = Callable[[float, float, float], tuple[float, float]]
"""Returns TTFT and ITL in milliseconds, given factors on decode steps, on prefill, and on the load
of an observation; infinite or NaN if the model has no answer."""


@dataclass(slots=True)
class SpeedTuner:
    """Tracks one server. `factors` are the current ones. Another tuner can continue from the
    fields."""

    log: FloatArray = field(default_factory=lambda: np.zeros(FACTORS))  # the factors' logarithms
    covariance: FloatArray = field(default_factory=lambda: np.eye(FACTORS) * PRIOR_SIGMA**2)
    at_s: float | None = None  # when the last observation was accepted
    refusals: int = 0  # how many were refused since

    @property
    def factors(self) -> Factors:
        # The logarithm of the largest value is rounded.
        decode, prefill = np.clip(np.exp(self.log), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
        decode_error, prefill_error = np.sqrt(np.diag(self.covariance))
        return Factors(float(decode), float(prefill), float(decode_error), float(prefill_error))

    def observe(
        self, at_s: float, ttft_ms: Mean, itl_ms: Mean, load_error: float, predict: Predict
    ) -> bool:
        """Learn from an observation. Returns whether it was accepted. An observation without a
        prediction by the model is refused and changes nothing. `load_error` is the relative error
        of the load: see the module."""
        observed = _observed(ttft_ms, itl_ms)
        if observed is None:
            return False
        measured, errors, chosen = observed
        linearised = _linearised(predict, self.log, chosen)
        if linearised is None:
            return False
        predicted, jacobian, by_load = linearised
        covariance = self.covariance + self._drift(at_s)
        base_noise = np.diag(errors**2 + MODEL_SIGMA**2)
        noise = base_noise + load_error**2 * np.outer(by_load, by_load)
        residual = measured - predicted
        spread = jacobian @ covariance @ jacobian.T + noise
        surprise = float(residual @ np.linalg.solve(spread, residual))
        if surprise > float(scipy.special.chdtri(len(measured), 1 - GATE)):
            self.refusals += 1
            if self.refusals < MAX_REFUSALS:
                return False
            covariance = np.eye(FACTORS) * max(PRIOR_SIGMA, float(np.abs(residual).max())) ** 2
        self.refusals = 0
        self.at_s = at_s
        before, limit = self.log, math.log(LARGEST_FACTOR)
        for _ in range(ITERATIONS):
            spread = jacobian @ covariance @ jacobian.T + noise
            gain = np.linalg.solve(spread, jacobian @ covariance).T
            correction = gain @ (measured - predicted - jacobian @ (before - self.log))
            self.log = np.clip(before + correction, -limit, limit)
            linearised = _linearised(predict, self.log, chosen)
            if linearised is None:
                break
            predicted, jacobian, by_load = linearised
            noise = base_noise + load_error**2 * np.outer(by_load, by_load)
        kept = np.eye(FACTORS) - gain @ jacobian
        # Joseph's form stays symmetric and positive despite rounding.
        covariance = kept @ covariance @ kept.T + gain @ noise @ gain.T
        excess = np.sqrt(np.maximum(np.diag(covariance) / MAX_VARIANCE, 1.0))
        bounded = covariance / np.outer(excess, excess)
        self.covariance = np.clip(bounded, -MAX_VARIANCE, MAX_VARIANCE)  # despite rounding
        return True

    def _drift(self, at_s: float) -> FloatArray:
        """Returns the variance the factors may have gained since the last observation."""
        passed_s = 0.0 if self.at_s is None else max(0.0, at_s - self.at_s)
        return np.eye(FACTORS) * DRIFT_SIGMA**2 * passed_s / DRIFT_S


def _observed(*means: Mean) -> tuple[FloatArray, FloatArray, list[int]] | None:
    """Returns the observed logarithms, their errors, and their indices in a prediction."""
    usable = [
        (at, value, error)
        for at, (value, error) in enumerate(means)
        if value is not None and math.isfinite(value) and value > 0
    ]
    if not usable:
        return None
    chosen, values, errors = zip(*usable, strict=True)
    return np.log(np.array(values)), np.array(errors), list(chosen)


def _linearised(
    predict: Predict, log: FloatArray, chosen: list[int]
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Returns the predicted logarithms, and their derivatives by factors and load."""

    def predicted(at: FloatArray) -> FloatArray:
        decode, prefill, load = np.exp(at)
        found = np.array(predict(float(decode), float(prefill), float(load)), dtype=np.float64)
        logarithms: FloatArray = np.log(found[chosen])
        return logarithms

    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.append(log, 0.0)
        values = predicted(at)
        steps = STEP * np.eye(FACTORS + 1)
        columns = [(predicted(at + step) - predicted(at - step)) / (2 * STEP) for step in steps]
    slopes = np.array(columns).T
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
        return None
    return values, slopes[:, :FACTORS], slopes[:, FACTORS]
