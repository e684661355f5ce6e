"""The answer of GET /catalogue: facts, and the calibration fitted to them."""

from typing import Annotated, Any

from pydantic import GetPydanticSchema

from optimizer.answer import shortest
from optimizer.catalogue.calibration import Calibration, PairFit, shipped_calibration
from optimizer.catalogue.facts import AcceleratorFacts, ModelFacts, shipped_facts
from optimizer.catalogue.roofline import IN_MS, PARTS
from optimizer.inferno_json import JsonObject

ModelJson = Annotated[dict[str, Any], GetPydanticSchema(lambda _, describe: describe(ModelFacts))]
AcceleratorJson = Annotated[
    dict[str, Any], GetPydanticSchema(lambda _, describe: describe(AcceleratorFacts))
]


class CataloguePart(JsonObject):
    """One part of the time: a factor on the datasheet's (`times`), or `ms` without one."""

    part: str
    times: float | None
    ms: float | None


class LeftOutPair(JsonObject):
    """A pair predicted from all others. `ratio` is predicted over measured; `error` is relative."""

    model: str
    accelerator: str
    points: int
    ratio: float
    error: float


class FittedPair(JsonObject):
    """`steps` and `prompts` are factors on the calibrated times, with standard errors. `residual`
    is the relative difference from published figures."""

    model: str
    accelerator: str
    precision: str
    points: int
    steps: float
    stepsError: float
    prompts: float
    promptsError: float
    residual: float
    engines: list[str]
    sources: list[str]


class CalibrationAnswer(JsonObject):
    """`denseError`, `expertsError`: relative standard errors without and with experts."""

    parts: list[CataloguePart]
    denseError: float
    expertsError: float
    leftOut: list[LeftOutPair]
    fitted: list[FittedPair]


class CatalogueAnswer(JsonObject):
    models: list[ModelJson]
    accelerators: list[AcceleratorJson]
    calibration: CalibrationAnswer


def catalogue() -> CatalogueAnswer:
    """Returns the answer of GET /catalogue."""
    facts, calibration = shipped_facts(), shipped_calibration()
    return {
        "models": [model.dump() for model in facts.models.values()],
        "accelerators": [each.dump() for each in facts.accelerators.values()],
        "calibration": {
            "parts": _parts(calibration),
            "denseError": shortest(calibration.dense_error),
            "expertsError": shortest(calibration.experts_error),
            "leftOut": [
                {
                    "model": each.pair[0],
                    "accelerator": each.pair[1],
                    "points": each.num_points,
                    "ratio": shortest(each.ratio),
                    "error": shortest(each.error),
                }
                for each in calibration.left_out
            ],
            "fitted": [_fitted(fit) for fit in calibration.fits],
        },
    }


def _parts(calibration: Calibration) -> list[CataloguePart]:
    return [
        {
            "part": part,
            "times": None if part in IN_MS else shortest(value),
            "ms": shortest(value) if part in IN_MS else None,
        }
        for part, value in zip(PARTS, calibration.efficiency, strict=True)
    ]


def _fitted(fit: PairFit) -> FittedPair:
    model, accelerator, precision = fit.key
    return {
        "model": model,
        "accelerator": accelerator,
        "precision": str(precision),
        "points": fit.num_points,
        "steps": shortest(fit.steps),
        "stepsError": shortest(fit.steps_error),
        "prompts": shortest(fit.prompts),
        "promptsError": shortest(fit.prompts_error),
        "residual": shortest(fit.error),
        "engines": list(fit.engines),
        "sources": list(fit.sources),
    }
