"""How much slower a server is now than its parameters say: an extended Kalman filter.

Parameters are fitted once; the machine's own speed moves, with its neighbours and its clock. Two
factors follow it, of the time of decode steps and of the time of prefill, from what is observed
while serving: mean TTFT and ITL at a known load and, where the server tells, the time of its steps.

Factors and observations are taken as logarithms, so that factors stay positive and errors are
relative. The factors walk at random; what they make the model predict is linearised by central
differences, again around each corrected state (Welch and Bishop, An Introduction to the Kalman
Filter, TR 95-041, 2006; Bell and Cathey, The iterated Kalman filter update as a Gauss-Newton
method, 1993).

Means over a short time also differ by chance: a queue that was long or short at first is so for a
while. With Poisson arrivals the number present, N, has variance lambda dN/dlambda, and forgets in
about dN/dlambda, so that its mean over n requests is off by E sqrt(2 / n), relative, where E is the
elasticity of N to the load. So are TTFT and ITL, each with its own: as if the load were uncertain
by sqrt(2 / n), which `load_error` says. Exact for many servers; for one, the variance is at most
twice that (Whitt, Asymptotic formulas for Markov processes with applications to simulation, 1992).

An observation too far from what was predicted is refused, as an accident; several in a row are no
accident, and the filter begins anew from them. Pure: any thread; a `SpeedTuner` has one owner.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.numerics import scipy
from optimizer.model.latency import FloatArray

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


@dataclass(frozen=True, slots=True)
class Observation:
    """Means over some time at one load; a quantity that was not observed is None.

    `*_error` is the standard error of a mean, relative to it: about 1 / sqrt(requests) times the
    spread of single ones. `load_error` is that of the load behind them: see the module.
    """

    at_s: float
    ttft_ms: float | None = None
    itl_ms: float | None = None
    ttft_error: float = 0.1
    itl_error: float = 0.1
    load_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Factors:
    """`decode` and `prefill` times are so many times the parameters'; `*_error`: relative."""

    decode: float = 1.0
    prefill: float = 1.0
    decode_error: float = PRIOR_SIGMA
    prefill_error: float = PRIOR_SIGMA


Predict = Callable[[float, float, float], tuple[float, float]]
"""TTFT and ITL in milliseconds, by the factors of decode steps, of prefill, and of the load of an
observation; infinite or NaN where the model has no answer."""


@dataclass(frozen=True, slots=True)
class TunerState:
    """All that a tuner knows, to go on from elsewhere: logarithms of the factors, their
    covariance, when the last observation was accepted, and how many were refused since."""

    log: tuple[float, float] = (0.0, 0.0)
    covariance: tuple[float, float, float] = (PRIOR_SIGMA**2, 0.0, PRIOR_SIGMA**2)
    at_s: float | None = None
    refusals: int = 0


class SpeedTuner:
    """Follows one server. `factors` are those of now."""

    def __init__(self, state: TunerState | None = None) -> None:
        state = state or TunerState()
        decode, both, prefill = state.covariance
        self._log = np.array(state.log)
        self._covariance = np.array([[decode, both], [both, prefill]])
        self._at_s = state.at_s
        self._refusals = state.refusals

    @property
    def state(self) -> TunerState:
        decode, prefill = self._log.tolist()
        (of_decode, both), (_, of_prefill) = self._covariance.tolist()
        return TunerState(
            (decode, prefill), (of_decode, both, of_prefill), self._at_s, self._refusals
        )

    @property
    def factors(self) -> Factors:
        # The logarithm of the largest is rounded.
        decode, prefill = np.clip(np.exp(self._log), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
        decode_error, prefill_error = np.sqrt(np.diag(self._covariance))
        return Factors(float(decode), float(prefill), float(decode_error), float(prefill_error))

    def observe(self, observation: Observation, predict: Predict) -> bool:
        """Learns from an observation. Returns whether it was accepted; one of which the model can
        say nothing is not, and leaves no trace."""
        wanted = _observed(observation)
        if wanted is None:
            return False
        measured, errors, chosen = wanted
        found = _linearised(predict, self._log, chosen)
        if found is None:
            return False
        predicted, jacobian, by_load = found
        covariance = self._covariance + self._drift(observation.at_s)
        own_noise = np.diag(errors**2 + MODEL_SIGMA**2)
        noise = own_noise + observation.load_error**2 * np.outer(by_load, by_load)
        residual = measured - predicted
        spread = jacobian @ covariance @ jacobian.T + noise
        surprise = float(residual @ np.linalg.solve(spread, residual))
        if surprise > float(scipy.special.chdtri(len(measured), 1 - GATE)):
            self._refusals += 1
            if self._refusals < MAX_REFUSALS:
                return False
            covariance = np.eye(FACTORS) * max(PRIOR_SIGMA, float(np.abs(residual).max())) ** 2
        self._refusals = 0
        self._at_s = observation.at_s
        before, limit = self._log, math.log(LARGEST_FACTOR)
        for _ in range(ITERATIONS):
            spread = jacobian @ covariance @ jacobian.T + noise
            gain = np.linalg.solve(spread, jacobian @ covariance).T
            correction = gain @ (measured - predicted - jacobian @ (before - self._log))
            self._log = np.clip(before + correction, -limit, limit)
            found = _linearised(predict, self._log, chosen)
            if found is None:
                break
            predicted, jacobian, by_load = found
            noise = own_noise + observation.load_error**2 * np.outer(by_load, by_load)
        kept = np.eye(FACTORS) - gain @ jacobian
        # Joseph's form: symmetric and positive whatever is rounded.
        covariance = kept @ covariance @ kept.T + gain @ noise @ gain.T
        excess = np.sqrt(np.maximum(np.diag(covariance) / MAX_VARIANCE, 1.0))
        self._covariance = covariance / np.outer(excess, excess)
        return True

    def _drift(self, at_s: float) -> FloatArray:
        """What the factors may have moved by since the last accepted observation."""
        passed_s = 0.0 if self._at_s is None else max(0.0, at_s - self._at_s)
        return np.eye(FACTORS) * DRIFT_SIGMA**2 * passed_s / DRIFT_S


def _observed(observation: Observation) -> tuple[FloatArray, FloatArray, list[int]] | None:
    """Returns logarithms of what was observed, their errors, and which of a prediction they are."""
    pairs = [
        (observation.ttft_ms, observation.ttft_error),
        (observation.itl_ms, observation.itl_error),
    ]
    usable = [
        (at, value, error)
        for at, (value, error) in enumerate(pairs)
        if value is not None and math.isfinite(value) and value > 0
    ]
    if not usable:
        return None
    chosen, values, errors = zip(*usable, strict=True)
    return np.log(np.array(values)), np.array(errors), list(chosen)


def _linearised(
    predict: Predict, log: FloatArray, chosen: list[int]
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Returns the logarithms predicted there, and how they change with factors and load."""

    def predicted(at: FloatArray) -> FloatArray:
        decode, prefill, load = np.exp(at)
        found = np.array(predict(float(decode), float(prefill), float(load)), dtype=np.float64)
        logarithms: FloatArray = np.log(found[chosen])
        return logarithms

    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.append(log, 0.0)
        here = predicted(at)
        steps = STEP * np.eye(FACTORS + 1)
        columns = [(predicted(at + step) - predicted(at - step)) / (2 * STEP) for step in steps]
    slopes = np.array(columns).T
    if not (np.isfinite(here).all() and np.isfinite(slopes).all()):
        return None
    return here, slopes[:, :FACTORS], slopes[:, FACTORS]
