"""Request bodies, which only this module checks. Immutable: any thread.

Sums are checked with a tolerance and then made exact, because floats rarely sum to exactly 1.
"""

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from common.faults import MAX_FAULTS, message_of, whole_number
from weights.errors import Fault, InvalidRequest, NoPartition
from weights.partition import partition, smallest_layers
from weights.search import Direction, Observation, Problem, Shares
from weights.simplex import nearest_point

TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3  # for the sum of weights that are rounded to three digits
MAX_NODES = 256
MAX_LAYERS = 1024
MAX_PROPOSALS = 64
MAX_OBSERVATIONS = 10_000  # in one request

SessionId = Annotated[str, Field(min_length=1, max_length=256)]
Metric = Annotated[float, Field(ge=-1e100, le=1e100)]  # so that its square is finite
Cap = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PER_NODE = Field(max_length=MAX_NODES)
Floats = Annotated[list[float], Field(max_length=MAX_NODES, fail_fast=True)]
Integer = Annotated[int, BeforeValidator(whole_number)]
NumLayers = Annotated[Integer, Field(ge=1, le=MAX_LAYERS)]


class Body(BaseModel):
    """Base of all bodies. Unknown fields are ignored, as in the reference."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Returns a request body. Raises InvalidRequest with every fault and its path."""
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise invalid("body", error) from error


def invalid(where: str, error: ValidationError) -> InvalidRequest:
    details = error.errors(include_url=False)[:MAX_FAULTS]
    return InvalidRequest(
        [Fault((where, *each["loc"]), message_of(each), each["type"]) for each in details]
    )


class NodesBody(Body):
    number_of_nodes: Integer = Field(ge=2, le=MAX_NODES)


class LogBody(NodesBody):
    """Body of `/weights_log`."""

    weights: Floats

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: list[float], info: ValidationInfo) -> list[float]:
        n = info.data.get("number_of_nodes", len(weights))
        return list(_checked(weights, [0.0] * n, [1.0] * n))


class SearchBody(NodesBody):
    """The problem of a search. Each field is checked together with the valid fields before it."""

    max_weightings: Annotated[list[Cap], PER_NODE]
    min_weightings: Annotated[list[Share], PER_NODE] | None = None
    direction: Direction = "maximize"
    num_layers: NumLayers | None = None

    @field_validator("max_weightings")
    @classmethod
    def _check_caps(cls, caps: list[float], info: ValidationInfo) -> list[float]:
        _check_length("max_weightings", caps, info)
        if sum(caps) < 1 - TOLERANCE:
            raise PydanticCustomError(
                "caps_too_low",
                "max_weightings sum to {total}, {missing} less than 1: no weights fit; raise some",
                {"total": f"{sum(caps):.9g}", "missing": f"{1 - sum(caps):.9g}"},
            )
        return caps

    @field_validator("min_weightings")
    @classmethod
    def _check_floors(cls, low: list[float] | None, info: ValidationInfo) -> list[float] | None:
        if low is None:
            return None
        _check_length("min_weightings", low, info)
        if sum(low) > 1 + TOLERANCE:
            raise PydanticCustomError(
                "floors_too_high",
                "min_weightings sum to {total}, {excess} more than 1: no weights fit; lower some",
                {"total": f"{sum(low):.9g}", "excess": f"{sum(low) - 1:.9g}"},
            )
        for node, (least, most) in enumerate(
            zip(low, info.data.get("max_weightings", low), strict=True)
        ):
            if least > most:
                raise PydanticCustomError(
                    "floor_above_cap",
                    "min_weightings[{node}]={least} exceeds max_weightings[{node}]={most}",
                    {"node": node, "least": least, "most": most},
                )
        return low

    @field_validator("num_layers")
    @classmethod
    def _check_layers(cls, num_layers: int | None, info: ValidationInfo) -> int | None:
        caps = info.data.get("max_weightings")
        if num_layers is None or caps is None or "min_weightings" not in info.data:
            return num_layers
        low = smallest_layers(info.data["min_weightings"] or [0.0] * len(caps), num_layers)
        try:
            partition([0.0] * len(caps), num_layers, caps, low)
        except NoPartition as error:
            raise PydanticCustomError("no_partition", "{why}", {"why": str(error)}) from error
        return num_layers

    @property
    def problem(self) -> Problem:
        low = self.min_weightings or [0.0] * self.number_of_nodes
        return Problem(tuple(low), tuple(self.max_weightings), self.direction, self.num_layers)


class UpdateBody(SearchBody):
    """Body of `/weights_update`."""

    session_id: SessionId
    weights: Floats
    performance_metric: Metric

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: list[float], info: ValidationInfo) -> list[float]:
        return list(_checked(weights, *_bounds(info)))

    @property
    def observation(self) -> Observation:
        return Observation(tuple(self.weights), self.performance_metric)


class GenerateBody(SearchBody):
    """Body of `/weights_gen`."""

    session_id: SessionId
    seed: Integer | None = Field(default=None, ge=0, lt=2**63)
    count: Integer = Field(default=1, ge=1, le=MAX_PROPOSALS)


class DeleteBody(Body):
    """Body of `/weights_update_delete`."""

    session_id: SessionId


class ObservationBody(Body):
    weights: Floats
    performance_metric: Metric


class ObservationsBody(SearchBody):
    """Body of `/weights/sessions/<id>/observations`."""

    observations: list[ObservationBody] = Field(min_length=1, max_length=MAX_OBSERVATIONS)

    @field_validator("observations")
    @classmethod
    def _check_observations(
        cls, observations: list[ObservationBody], info: ValidationInfo
    ) -> list[ObservationBody]:
        bounds = _bounds(info)
        return [
            each.model_copy(update={"weights": list(_checked(each.weights, *bounds, f"[{i}]."))})
            for i, each in enumerate(observations)
        ]

    @property
    def all_observations(self) -> list[Observation]:
        return [Observation(tuple(o.weights), o.performance_metric) for o in self.observations]


class PartitionBody(Body):
    """Body of `/weights/sessions/<id>/partition`. Without `weights` the session's best are used."""

    num_layers: NumLayers
    min_layers: Integer | None = Field(default=None, ge=0, le=MAX_LAYERS)  # None: 1 if possible
    weights: Floats | None = None

    def weights_within(self, problem: Problem) -> Shares | None:
        """Returns the given weights, None if there are none. Raises InvalidRequest."""
        if self.weights is None:
            return None
        try:
            return _checked(self.weights, problem.min_weightings, problem.max_weightings)
        except PydanticCustomError as error:
            fault = Fault(("body", "weights"), error.message(), error.type)
            raise InvalidRequest([fault]) from error


class Page(BaseModel):
    """Query of the routes that return lists in pages."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    offset: int = Field(default=0, ge=0, lt=2**53)
    limit: int = Field(default=100, ge=1, le=1000)

    @classmethod
    def parse(cls, query: dict[str, str]) -> Self:
        try:
            return cls.model_validate(query)
        except ValidationError as error:
            raise invalid("query", error) from error


def _check_length(name: str, values: Sequence[float], info: ValidationInfo) -> None:
    n = info.data.get("number_of_nodes", len(values))
    if len(values) != n:
        raise PydanticCustomError(
            "wrong_length",
            "{name} has {length} entries and number_of_nodes={n}; give one per node",
            {"name": name, "length": len(values), "n": n},
        )


def _bounds(info: ValidationInfo) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the bounds of every node; empty if the fields with the bounds are invalid."""
    high = info.data.get("max_weightings", [])
    low = info.data.get("min_weightings") or [0.0] * len(high)
    return low, high


def _checked(
    weights: Sequence[float], low: Sequence[float], high: Sequence[float], at: str = ""
) -> Shares:
    """Returns the weights, scaled to sum to exactly 1. They must sum to 1 and lie within
    [low, high], up to the tolerances."""
    if not high:
        return tuple(weights)  # the bounds are invalid, and reported already
    if len(weights) != len(high):
        raise PydanticCustomError(
            "wrong_length",
            "{at}weights has {length} entries for {n} nodes; give one per node",
            {"at": at, "length": len(weights), "n": len(high)},
        )
    for node, (weight, least, most) in enumerate(zip(weights, low, high, strict=True)):
        if not least - TOLERANCE <= weight <= most + TOLERANCE:
            raise PydanticCustomError(
                "out_of_bounds",
                "{at}weights[{node}]={weight} is outside [{least}, {most}]",
                {"at": at, "node": node, "weight": weight, "least": least, "most": most},
            )
    total = sum(weights)
    if abs(total - 1) > SUM_TOLERANCE:
        raise PydanticCustomError(
            "wrong_sum",
            "{at}weights sum to {total}, not to 1; divide them by their sum",
            {"at": at, "total": f"{total:.9g}"},
        )
    within = [min(max(w, 0.0), 1.0) for w in weights]
    scaled = tuple(w / sum(within) for w in within)
    if abs(total - 1) <= TOLERANCE:
        return scaled
    # Scaling may have moved weights out of the bounds.
    return tuple(nearest_point(np.array(scaled), np.array(low), np.array(high)).tolist())
