"""Calibrates the roofline: how long its parts really take, and how large its errors are.

`python -m lab.catalogue --write` fits `data/calibration.json` to published measurements. Errors of
estimates are found by leaving out each pair of model and accelerator in turn. A pair with its own
measurements has two factors, for steps and for prompts. Immutable: any thread.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np
from pydantic import TypeAdapter

from optimizer.catalogue.facts import ModelFacts, Precision

PairKey = tuple[str, str, Precision]  # a model's shape, an accelerator, the weights' precision


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How well the roofline predicts a pair without calibration on it: predicted over measured."""

    pair: tuple[str, str]  # model and accelerator
    num_points: int
    ratio: float  # geometric mean
    error: float  # root mean square of the logarithms


@dataclass(frozen=True, slots=True)
class PairFit:
    """A pair's own measurements, relative to the calibrated roofline."""

    key: PairKey
    steps: float  # factors, each with its standard error
    prompts: float
    steps_error: float
    prompts_error: float
    num_points: int
    error: float  # root mean square of the relative residuals
    sources: tuple[str, ...]
    engines: tuple[str, ...]

    def error_beside(self, estimated: float) -> float:
        """Returns the relative error of steps as a whole, at most that of an estimate."""
        return min(float(np.hypot(self.error, self.steps_error)), estimated)


@dataclass(frozen=True, slots=True)
class Calibration:
    """`efficiency` says by part how many times as long it really takes. The errors are relative
    standard errors of estimates, for models without and with experts."""

    efficiency: tuple[float, ...]
    left_out: tuple[LeftOut, ...]
    dense_error: float
    experts_error: float
    fits: tuple[PairFit, ...]

    def error_of(self, model: ModelFacts) -> float:
        """Returns the error of an estimate of the model."""
        return self.experts_error if model.experts else self.dense_error

    def fit_of(self, key: PairKey) -> PairFit | None:
        return next((fit for fit in self.fits if fit.key == key), None)


CALIBRATION = TypeAdapter(Calibration)


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """Returns the calibration that ships with Hearth. Read once per process."""
    return CALIBRATION.validate_json((files(__package__) / "data/calibration.json").read_bytes())
