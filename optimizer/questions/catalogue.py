"""The answer of GET /catalogue: facts, and the calibration fitted to them."""

from typing import Annotated, Any

from pydantic import GetPydanticSchema

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.catalogue.calibration import LeftOut, PairFit, shipped_calibration
from optimizer.catalogue.facts import AcceleratorFacts, ModelFacts, shipped_facts
from optimizer.catalogue.roofline import IN_MS, PARTS

Json = dict[str, Any]
ModelJson = Annotated[Json, GetPydanticSchema(lambda _, describe: describe(ModelFacts))]
AcceleratorJson = Annotated[Json, GetPydanticSchema(lambda _, describe: describe(AcceleratorFacts))]
LeftOutJson = Annotated[Json, GetPydanticSchema(lambda _, describe: describe(LeftOut))]
PairFitJson = Annotated[Json, GetPydanticSchema(lambda _, describe: describe(PairFit))]


class CataloguePart(WireDict):
    """One part of the time: a factor on the datasheet's (`times`), or `ms` without one."""

    part: str
    times: float | None
    ms: float | None


class CalibrationAnswer(WireDict):
    parts: list[CataloguePart]
    denseError: float
    expertsError: float
    leftOut: list[LeftOutJson]
    fitted: list[PairFitJson]


class CatalogueAnswer(WireDict):
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
            "parts": [
                {
                    "part": part,
                    "times": None if part in IN_MS else shortest(value),
                    "ms": shortest(value) if part in IN_MS else None,
                }
                for part, value in zip(PARTS, calibration.efficiency, strict=True)
            ],
            "denseError": shortest(calibration.dense_error),
            "expertsError": shortest(calibration.experts_error),
            "leftOut": [_shortened(each) for each in calibration.left_out],
            "fitted": [_shortened(each) for each in calibration.fitted],
        },
    }


def _shortened(entry: LeftOut | PairFit) -> Json:
    dumped = entry.dump()
    return {name: shortest(v) if isinstance(v, float) else v for name, v in dumped.items()}
