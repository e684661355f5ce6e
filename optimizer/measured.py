"""Numbers as monitoring gives them: means, and now and then nothing, NaN or nonsense.

A measured load may be nonsense for one server: that server gets a reason, not the caller a 400. The
reference refuses what is no number and reads what is left out as 0; so does `Reading.REFERENCE`.
"""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from optimizer.inferno_json import Body, Reading

MAX_MEASURED, MAX_TOKENS = 1e15, 2**31 - 1
# A solve computes no more from fields within their bounds, and sums of it stay within float32.
MAX_COMPUTED = 1e35


def _whole(value: Any) -> Any:
    """Reads a mean number, as Prometheus gives it (998.7), as the nearest whole one."""
    return round(value) if isinstance(value, float) and math.isfinite(value) else value


def _known(most: float, otherwise: float | None = None) -> BeforeValidator:
    """Reads a number that no measurement can give as `otherwise`."""

    def read(value: Any, info: ValidationInfo) -> Any:
        is_number = isinstance(value, int | float) and info.context is not Reading.REFERENCE
        return otherwise if is_number and not abs(value) <= most else value

    return BeforeValidator(read, json_schema_input_type=float | None)


def _left_out(value: Any, info: ValidationInfo) -> Any:
    is_unknown = info.context in (Reading.OURS, Reading.RECORD)
    return 0 if value is None and not is_unknown else value


MAX_SPREAD = 100
Spread = Annotated[float, Field(ge=0, le=MAX_SPREAD)]  # variance over the mean squared
Computed = Annotated[float, Field(ge=0, le=MAX_COMPUTED)]
MeanTokens = Annotated[
    int, Field(ge=0, le=MAX_TOKENS), BeforeValidator(_whole, json_schema_input_type=float)
]
# None where it is not known.
Measured = Annotated[
    Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED)] | None, _known(MAX_MEASURED)
]
MeasuredLatency = Annotated[Computed, _known(MAX_COMPUTED, otherwise=0.0)]
# A missing figure is 0 for `Reading.REFERENCE` and in loads made here; elsewhere it is unknown.
LoadRate = Annotated[Measured, BeforeValidator(_left_out)]
LoadTokens = Annotated[
    Annotated[int, Field(ge=-MAX_TOKENS, le=MAX_TOKENS)] | None,
    BeforeValidator(_whole),
    _known(MAX_TOKENS),
    BeforeValidator(_left_out),
]


class LoadSpec(Body, validate_default=True):
    """`known` is None of what was not measured; the figures to plan with are then 0."""

    known_rate: LoadRate = Field(default=None, alias="arrivalRate")
    known_in_tokens: LoadTokens = Field(default=None, alias="avgInTokens")
    known_out_tokens: LoadTokens = Field(default=None, alias="avgOutTokens")
    throughput: Measured = None  # newer reference: what was served; not used
    # Extension; absent = 1. Used with a service curve.
    out_tokens_scv: Annotated[Spread | None, _known(MAX_SPREAD)] = None

    @property
    def arrival_rate(self) -> float:
        return self.known_rate or 0.0

    @property
    def avg_in_tokens(self) -> int:
        return self.known_in_tokens or 0

    @property
    def avg_out_tokens(self) -> int:
        return self.known_out_tokens or 0
