"""The answers of the routes. Unset fields are left out."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from weights.errors import Problem
from weights.partition import Layers, engine_settings, ranges
from weights.schema import Page
from weights.search import (
    Assessment,
    Best,
    Convergence,
    Direction,
    Observation,
    Proposal,
    Shares,
)
from weights.session import Session, UpdateEffect

FIRST = "/weights_update/: SUCCESS, first weights in"
BETTER = "/weights_update/: SUCCESS, best weights updated"
NO_CHANGE = "/weights_update/: SUCCESS, no change in best weights"
AT_RANDOM = "/weights_update/: SUCCESS, not enough data, generated random weights"
BY_MODEL = "/weights_update/: SUCCESS, model fit, generated weights"
DELETED = "/weights_update_delete/: SUCCESS, key session_{} deleted"
NOT_FOUND = "/weights_update_delete/: FAILURE, key session_{} not found"
LOGGED = "weights_log: SUCCESS"


class WireModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReferenceAnswer(WireModel):
    """The fields of every answer of the reference."""

    status_code: int
    message: str


class LoggedAnswer(ReferenceAnswer):
    number_of_nodes: int
    weights: Shares


class UpdateAnswer(ReferenceAnswer):
    """The best single measurement, and the number of measurements."""

    best_perf_metric: float
    best_weights: Shares
    best_out_of: int

    @classmethod
    def of(cls, effect: UpdateEffect) -> Self:
        session = effect.session
        return cls(
            status_code=200,
            message=FIRST if effect.is_first else BETTER if effect.is_better else NO_CHANGE,
            best_perf_metric=session.best.metric,
            best_weights=session.best.shares,
            best_out_of=session.num_observations,
        )


class ProposalAnswer(WireModel):
    weights: Shares
    model: str
    predicted_metric: float | None = None
    predicted_spread: float | None = None


class GeneratedAnswer(ReferenceAnswer, ProposalAnswer):
    """The first proposal, and all proposals."""

    proposals: list[ProposalAnswer]

    @classmethod
    def of(cls, proposals: list[Proposal]) -> Self:
        message = AT_RANDOM if proposals[0].model == "random" else BY_MODEL
        return cls(
            status_code=200,
            message=message,
            **_fields(proposals[0]),
            proposals=[ProposalAnswer(**_fields(proposal)) for proposal in proposals],
        )


class ObservationAnswer(WireModel):
    weights: Shares
    performance_metric: float

    @classmethod
    def of(cls, observation: Observation) -> Self:
        return cls(weights=observation.shares, performance_metric=observation.metric)


class SessionAnswer(WireModel):
    session_id: str
    number_of_nodes: int
    direction: Direction
    num_observations: int
    best: ObservationAnswer

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(
            session_id=session.session_id,
            number_of_nodes=session.problem.number_of_nodes,
            direction=session.problem.direction,
            num_observations=session.num_observations,
            best=ObservationAnswer.of(session.best),
        )


class SessionsAnswer(WireModel):
    sessions: list[SessionAnswer]
    offset: int
    limit: int


class NoiseAwareAnswer(ObservationAnswer):
    """A bound of the interval is null if it is infinite, as after a single measurement."""

    interval_90: tuple[float | None, float | None]

    @classmethod
    def of_best(cls, best: Best) -> Self:
        low, high = (end if math.isfinite(end) else None for end in (best.low, best.high))
        return cls(weights=best.shares, performance_metric=best.metric, interval_90=(low, high))


class OverviewAnswer(SessionAnswer):
    min_weightings: Shares
    max_weightings: Shares
    num_layers: int | None
    model: str
    noise_aware_best: NoiseAwareAnswer
    convergence: Convergence
    concentration: tuple[float, ...] | None
    history: list[ObservationAnswer]
    offset: int
    limit: int

    @classmethod
    def of_assessed(
        cls, session: Session, assessment: Assessment, history: Iterable[Observation], page: Page
    ) -> Self:
        problem = session.problem
        return cls(
            **SessionAnswer.of(session).model_dump(),
            min_weightings=problem.min_weightings,
            max_weightings=problem.max_weightings,
            num_layers=problem.num_layers,
            model=assessment.model,
            noise_aware_best=NoiseAwareAnswer.of_best(assessment.best),
            convergence=assessment.convergence,
            concentration=assessment.concentration,
            history=[ObservationAnswer.of(observation) for observation in history],
            offset=page.offset,
            limit=page.limit,
        )


# [first, last + 1]; described without prefixItems, which many OpenAPI readers do not support.
LayerRange = Annotated[
    tuple[int, int],
    WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
]


class PartitionAnswer(WireModel):
    weights: Shares
    num_layers: int
    layers_per_node: Layers
    layers: list[LayerRange]
    engines: dict[str, object]

    @classmethod
    def of(cls, weights: Shares, layers: Layers) -> Self:
        return cls(
            weights=weights,
            num_layers=sum(layers),
            layers_per_node=layers,
            layers=ranges(layers),
            engines=engine_settings(layers),
        )


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """Returns the descriptions of an operation's failures, by status."""
    return dict.fromkeys(statuses, Problem)


def _fields(proposal: Proposal) -> dict[str, object]:
    """Returns the fields that were set."""
    fields = asdict(proposal)
    fields["weights"] = fields.pop("shares")
    return {name: value for name, value in fields.items() if value is not None}
