"""A cycle as JSON: whole for the journal, without question and answer, and in short; and what a
starting controller reads of it."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

from cluster.controller.cycle import Cycle, Latencies, ServerCycle
from cluster.controller.forecasts import Forecast, JudgedForecast, JudgedForecasts, Score
from cluster.controller.rollout import Plan
from cluster.replicas import Group, Outcome

Json = dict[str, Any]


class GroupTold(TypedDict):
    accelerator: str
    user_rows: int
    replicas: int


class UnplacedTold(TypedDict):
    """Replicas without room on any machine."""

    server: str
    accelerator: str
    replicas: int
    why: str


class LatenciesTold(TypedDict):
    ttft_ms: float | None
    itl_ms: float | None


class ServerTold(TypedDict):
    """One server in one cycle. `load` is in the optimizer's terms; `is_short` means that it has too
    few replicas for that."""

    load: dict[str, float]
    arrived_per_minute: float | None
    measured: LatenciesTold
    predicted: LatenciesTold
    planned: LatenciesTold
    plan: list[GroupTold]
    has_changed: bool
    is_short: bool
    held: str
    missed: list[str]
    forecasts: dict[str, Forecast]
    judged: dict[str, JudgedForecast]
    scores: dict[str, Score]


class CycleTold(TypedDict):
    """`cost` is in cents per hour; `speeds` are the factors of each model and accelerator."""

    cycle: int
    at: str
    seconds: float
    fault: str
    cost: float | None
    servers: dict[str, ServerTold]
    speeds: list[Json]
    not_learned: list[dict[str, str]]


class ServerDecision(TypedDict):
    arrived_per_minute: float | None
    plan: list[GroupTold]
    has_changed: bool
    is_short: bool
    held: str


class DecisionTold(TypedDict):
    cycle: int
    at: str
    fault: str
    cost: float | None
    servers: dict[str, ServerDecision]


class _PastServer(TypedDict):
    judged: dict[str, JudgedForecast]


class _PastCycle(TypedDict):
    servers: dict[str, _PastServer]


_PAST = TypeAdapter(_PastCycle)


def judgements_in(line: bytes) -> JudgedForecasts:
    """What a line of the journal says of forecasts: none for a fault's, or one that is damaged."""
    try:
        past = _PAST.validate_json(line)
    except ValidationError:
        return {}
    return {name: each["judged"] for name, each in past["servers"].items()}


def entry_of(cycle: Cycle, unplaced: Mapping[Group, Outcome], dry_run: bool) -> Json:
    """A line of the journal."""
    answer = None if cycle.answer is None else cycle.answer.model_dump(by_alias=True)
    return {
        **told(cycle),
        "unplaced": unplaced_of(unplaced),
        "dry_run": dry_run,
        "question": cycle.question,
        "answer": answer,
    }


def fault_entry(at_s: float, fault: str) -> Json:
    """A line of the journal about a cycle without a plan."""
    return {"at": _time_of(at_s), "fault": fault}


def told(cycle: Cycle) -> CycleTold:
    """Returns the observations and decisions of a cycle."""
    return {
        "cycle": cycle.number,
        "at": _time_of(cycle.at_s),
        "seconds": round(cycle.seconds, 4),
        "fault": cycle.fault,
        "cost": _cost_of(cycle),
        "servers": {name: _server(each) for name, each in cycle.servers.items()},
        "speeds": [
            {"model": model, "accelerator": accelerator, **factors.model_dump()}
            for (model, accelerator), factors in cycle.learned.factors.items()
        ],
        "not_learned": [
            {"model": model, "accelerator": accelerator, "why": why}
            for (model, accelerator), why in {
                **dict.fromkeys(cycle.learned.refused, "too surprising"),
                **cycle.learned.why,
            }.items()
        ],
    }


def decision_of(cycle: Cycle) -> DecisionTold:
    """Returns the decisions of a cycle, in short."""
    return {
        "cycle": cycle.number,
        "at": _time_of(cycle.at_s),
        "fault": cycle.fault,
        "cost": _cost_of(cycle),
        "servers": {
            name: {
                "arrived_per_minute": each.arrived_per_minute,
                "plan": groups(each.plan),
                "has_changed": each.has_changed,
                "is_short": each.is_short,
                "held": each.held,
            }
            for name, each in cycle.servers.items()
        },
    }


def groups(plan: Plan) -> list[GroupTold]:
    return [
        {"accelerator": g.accelerator, "user_rows": g.user_rows, "replicas": count}
        for g, count in plan.items()
    ]


def unplaced_of(unplaced: Mapping[Group, Outcome]) -> list[UnplacedTold]:
    return [
        {"server": group.server, "accelerator": group.accelerator, "replicas": each.unplaced,
         "why": each.why}
        for group, each in unplaced.items()
    ]  # fmt: skip


def _time_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _cost_of(cycle: Cycle) -> float | None:
    return None if cycle.answer is None else cycle.answer.summary.total_cost


def _server(seen: ServerCycle) -> ServerTold:
    return {
        "load": seen.load.as_json(),
        "arrived_per_minute": seen.arrived_per_minute,
        "measured": _latencies(seen.measured),
        "predicted": _latencies(seen.predicted),
        "planned": _latencies(seen.planned),
        "plan": groups(seen.plan),
        "has_changed": seen.has_changed,
        "is_short": seen.is_short,
        "held": seen.held,
        "missed": list(seen.missed),
        "forecasts": {name: cast(Forecast, asdict(f)) for name, f in seen.forecasts.items()},
        "judged": {name: cast(JudgedForecast, asdict(j)) for name, j in seen.judged.items()},
        "scores": {name: cast(Score, asdict(s)) for name, s in seen.scores.items()},
    }


def _latencies(each: Latencies) -> LatenciesTold:
    return {"ttft_ms": each.ttft_ms, "itl_ms": each.itl_ms}
