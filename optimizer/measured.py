"""Reads figures from monitoring, which may be means, missing, NaN or impossible.

If the measured load of one server is unusable, the answer gives that server a reason; the request
is not refused. The reference refuses values that are no numbers and reads absent ones as 0; so does
`Reading.REFERENCE`.
"""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from optimizer.inferno_json import Body, Reading

MAX_MEASURED, MAX_TOKENS = 1e15, 2**31 - 1
# Results from fields within their bounds stay below this, and their sums within float32.
MAX_COMPUTED = 1e35


def _rounded(value: Any) -> Any:
    """Rounds a mean, such as 998.7 from Prometheus, to a whole number."""
    return round(value) if isinstance(value, float) and math.isfinite(value) else value


def _within(most: float, otherwise: float | None = None) -> BeforeValidator:
    """Replaces NaN, and numbers beyond ±`most`, which no measurement gives, by `otherwise`."""

    def read(value: Any, info: ValidationInfo) -> Any:
        is_number = isinstance(value, int | float) and info.context is not Reading.REFERENCE
        return otherwise if is_number and not abs(value) <= most else value

    return BeforeValidator(read, json_schema_input_type=float | None)


def _zero_if_missing(value: Any, info: ValidationInfo) -> Any:
    is_unknown = info.context in (Reading.STRICT, Reading.RECORD)
    return 0 if value is None and not is_unknown else value


MAX_SPREAD = 100
Spread = Annotated[float, Field(ge=0, le=MAX_SPREAD)]  # variance over the mean squared
Computed = Annotated[float, Field(ge=0, le=MAX_COMPUTED)]
MeanTokens = Annotated[
    int, Field(ge=0, le=MAX_TOKENS), BeforeValidator(_rounded, json_schema_input_type=float)
]
# None if it is not known.
Measured = Annotated[
    Annotated[float, Field(ge=-MAX_MEASURED, le=MAX_MEASURED)] | None, _within(MAX_MEASURED)
]
MeasuredLatency = Annotated[Computed, _within(MAX_COMPUTED, otherwise=0.0)]
# A missing figure is 0 for `Reading.REFERENCE` and in loads made here; otherwise it is unknown.
LoadRate = Annotated[Measured, BeforeValidator(_zero_if_missing)]
LoadTokens = Annotated[
    Annotated[int, Field(ge=-MAX_TOKENS, le=MAX_TOKENS)] | None,
    BeforeValidator(_rounded),
    _within(MAX_TOKENS),
    BeforeValidator(_zero_if_missing),
]


class LoadSpec(Body, validate_default=True):
    """A load. Unmeasured figures are None in `known`, and 0 in the figures to plan with."""

    known_rate: LoadRate = Field(default=None, alias="arrivalRate")
    known_in_tokens: LoadTokens = Field(default=None, alias="avgInTokens")
    known_out_tokens: LoadTokens = Field(default=None, alias="avgOutTokens")
    throughput: Measured = None  # newer reference: what was served; not used
    # Extension; absent = 1. Used with a service curve.
    out_tokens_scv: Annotated[Spread | None, _within(MAX_SPREAD)] = None

    @property
    def arrival_rate(self) -> float:
        return self.known_rate or 0.0

    @property
    def avg_in_tokens(self) -> int:
        return self.known_in_tokens or 0

    @property
    def avg_out_tokens(self) -> int:
        return self.known_out_tokens or 0
