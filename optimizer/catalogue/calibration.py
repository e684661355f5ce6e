"""Calibrates the roofline: how long its parts really take, and how large its errors are.

`python -m lab.catalogue --write` fits `data/calibration.json` to published measurements. Errors of
estimates are found by leaving out each pair of model and accelerator in turn. A pair with its own
measurements has two factors, for steps and for prompts. Immutable: any thread.
"""

from functools import lru_cache
from importlib.resources import files

import numpy as np
from pydantic import Field

from optimizer.catalogue.facts import AnyPrecision, ModelFacts, Precision
from optimizer.inferno_json import Body

PairKey = tuple[str, str, Precision]  # a model's shape, an accelerator, the weights' precision


class LeftOut(Body):
    """How well the roofline predicts a pair without calibration on it: predicted over measured."""

    model: str
    accelerator: str
    num_points: int = Field(alias="points")
    ratio: float  # geometric mean
    error: float  # root mean square of the logarithms

    @property
    def pair(self) -> tuple[str, str]:
        return self.model, self.accelerator


class PairFit(Body):
    """A pair's own measurements, relative to the calibrated roofline: factors, with their standard
    errors, and the root mean square of the relative residuals."""

    model: str
    accelerator: str
    precision: AnyPrecision
    num_points: int = Field(alias="points")
    steps: float
    steps_error: float
    prompts: float
    prompts_error: float
    residual: float
    engines: list[str]
    sources: list[str]

    @property
    def key(self) -> PairKey:
        return self.model, self.accelerator, self.precision

    def error_beside(self, estimated: float) -> float:
        """Returns the relative error of a whole step, but at most `estimated`, an estimate's."""
        return min(float(np.hypot(self.residual, self.steps_error)), estimated)


class Calibration(Body):
    """`efficiency` holds a factor on the datasheet's time, or ms, for each of `roofline.PARTS`. The
    errors are relative standard errors of estimates, for models without and with experts."""

    efficiency: list[float]
    dense_error: float
    experts_error: float
    left_out: list[LeftOut]
    fitted: list[PairFit]

    def error_of(self, model: ModelFacts) -> float:
        """Returns the error of an estimate of the model."""
        return self.experts_error if model.experts else self.dense_error

    def fit_of(self, key: PairKey) -> PairFit | None:
        return next((fit for fit in self.fitted if fit.key == key), None)


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """Returns the calibration that ships with Hearth. Read once per process."""
    text = (files(__package__) / "data/calibration.json").read_bytes()
    return Calibration.model_validate_json(text)
