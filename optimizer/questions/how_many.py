"""Computes how many accelerators of the catalogue a demand needs, and what would change the answer.

Rates on the wire are requests per minute and costs cents per hour, as everywhere in the data.
Pure, except for the sizing cache: any thread.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.candidates.replicas import SizingCache
from optimizer.catalogue.calibration import shipped_calibration
from optimizer.catalogue.facts import AnyPrecision, Facts, Precision, shipped_facts
from optimizer.catalogue.options import CARDS_PER_REPLICA, CardMarket, RequestDemand, options
from optimizer.catalogue.speeds import Kind
from optimizer.errors import Fault, InvalidRequest
from optimizer.inferno_json import Body
from optimizer.measured import MeanTokens
from optimizer.questions.changes import Change, changes
from optimizer.questions.sized import Bind, Bounds, Sized, Unfit, sized_in_turn, with_bounds
from optimizer.spec import LEAST_RATE, Level, Name, PerfData

MOST_TOKENS = 10**7
MOST_CENTS = 10**7  # highest price of one card for one hour
ENDLESS = 1e35  # stands for an infinite bound, which JSON cannot represent

Cents = Annotated[float, Field(ge=0, le=MOST_CENTS)]
Tokens = Annotated[MeanTokens, Field(le=MOST_TOKENS)]


class HowManyQuery(Body):
    """A demand. `prices` (cents per card and hour) and `measured` (performance data) replace the
    catalogue's. In `measured`, `acc` is an accelerator of the catalogue, and `accCount` is the
    number of cards of a replica."""

    model: Name
    arrival_rate: Annotated[float, Field(ge=LEAST_RATE, le=1e9)]
    slo_ttft: Level = Field(default=0.0, alias="slo-ttft")
    slo_itl: Level = Field(default=0.0, alias="slo-itl")
    avg_in_tokens: Tokens = 512
    avg_out_tokens: Annotated[Tokens, Field(ge=1)] = 256
    precision: AnyPrecision | None = None  # absent = the model's own
    accelerators: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list)
    max_cards: Annotated[int, Field(ge=1, le=10**6)] | None = None  # cards of one type, in all
    prices: Annotated[dict[Name, Cents], Field(max_length=100)] = Field(default_factory=dict)
    measured: Annotated[list[PerfData], Field(max_length=100)] = Field(default_factory=list)


class Range(WireDict):
    """95 % bounds. `high` is null if slower cards could not meet the levels at all."""

    low: float
    high: float | None


class Memory(WireDict):
    """Memory of one replica, in bytes."""

    weights: float
    ofRequest: float
    usable: float


class SpeedOrigin(WireDict):
    """The origin of a speed. `error` is a relative standard error; `points` counts the measurements
    it is fitted to; `promptsEstimated` says that no prompts were measured."""

    kind: Kind
    error: float
    points: int
    promptsEstimated: bool
    engines: list[str]
    sources: list[str]


class Choice(WireDict):
    """An accelerator with its replicas. `maxRPM` is a replica's highest rate within the levels;
    `binds` is the level that limits it."""

    accelerator: str
    title: str
    cardsPerReplica: int
    numReplicas: int
    cards: int
    cost: float
    costPerCard: float
    maxBatch: int
    maxRPM: float
    binds: Bind
    utilization: float
    ttftAverage: float
    itlAverage: float
    replicasRange: Range
    costRange: Range
    ttftRange: Range
    itlRange: Range
    memory: Memory
    speed: SpeedOrigin


class NotChosen(WireDict):
    accelerator: str
    reason: str


class Nearest(WireDict):
    """The levels that an idle replica can meet, if those requested cannot be met."""

    accelerator: str
    ttftAverage: float
    itlAverage: float


class HowMany(WireDict):
    """`choices` has one entry for each accelerator that meets the levels, cheapest first."""

    model: str
    precision: Precision
    arrivalRate: float
    avgInTokens: int
    avgOutTokens: int
    choices: list[Choice]
    notChosen: list[NotChosen]
    nearest: Nearest | None
    changes: list[Change]
    notes: list[str]


def how_many(query: HowManyQuery, cache: SizingCache) -> HowMany:
    """Returns the answer of POST /howmany. If no accelerator suffices, that is an answer, too.
    Raises InvalidRequest for a name that the catalogue does not have."""
    facts = shipped_facts()
    demand, market = _demand(query, facts), _market(query, facts)
    found, refused = options(demand, market)
    fit, unfit = sized_in_turn(demand, found, cache)
    best = with_bounds(demand, _cheapest_of_each(fit, market, refused))
    for each in unfit:
        reason = f"{each.refusal.message} ({each.option.name})"
        refused.setdefault(each.option.accelerator, reason)
    return {
        "model": demand.model.name,
        "precision": demand.precision,
        "arrivalRate": query.arrival_rate,
        "avgInTokens": demand.in_tokens,
        "avgOutTokens": demand.out_tokens,
        "choices": [_choice(demand, each) for each in best],
        "notChosen": [
            {"accelerator": name, "reason": refused[name]}
            for name in sorted(refused.keys() - {each.option.accelerator for each in best})
        ],
        "nearest": None if best else _nearest(demand, unfit),
        "changes": list(changes(demand, market, best, cache)) if best else [],
        "notes": list(_notes(demand, market, best)),
    }


def _demand(query: HowManyQuery, facts: Facts) -> RequestDemand:
    model = facts.model(query.model)
    tokens = query.avg_in_tokens + query.avg_out_tokens
    if tokens > model.context:
        message = f"{tokens} tokens of a request exceed the {model.context} of {model.name}"
        raise InvalidRequest([Fault("avgInTokens", f"{message}; ask for shorter ones")])
    precision = query.precision or model.published
    if precision is Precision.MXFP4 and model.experts is None:
        message = f"{model.name} has no experts, whose weights alone mxfp4 is for; ask for fp4"
        raise InvalidRequest([Fault("precision", message)])
    return RequestDemand(
        model=model,
        precision=precision,
        rate_per_s=query.arrival_rate / 60,
        in_tokens=query.avg_in_tokens,
        out_tokens=query.avg_out_tokens,
        ttft_ms=query.slo_ttft,
        itl_ms=query.slo_itl,
    )


def _market(query: HowManyQuery, facts: Facts) -> CardMarket:
    requested = [facts.accelerator(name, "accelerators").name for name in query.accelerators]
    cents = {
        each.name: 100 * each.price.usd_per_hour
        for each in facts.accelerators.values()
        if each.price
    }
    cents |= {facts.accelerator(name, "prices").name: value for name, value in query.prices.items()}
    return CardMarket(
        calibration=shipped_calibration(),
        accelerators=[
            facts.accelerators[name] for name in dict.fromkeys(requested or facts.accelerators)
        ],
        cents=cents,
        measured=dict(_measured(query, facts)),
        max_cards=query.max_cards,
    )


def _measured(query: HowManyQuery, facts: Facts) -> Iterable[tuple[tuple[str, int], PerfData]]:
    model = facts.model(query.model).name
    for number, perf in enumerate(query.measured):
        path = f"measured[{number}]"
        if facts.model(perf.name, f"{path}.name").name != model:
            continue
        if perf.units not in CARDS_PER_REPLICA:
            allowed = ", ".join(map(str, CARDS_PER_REPLICA))
            message = f"{perf.units} cards of a replica; the catalogue has {allowed}"
            raise InvalidRequest([Fault(f"{path}.accCount", message)])
        yield (facts.accelerator(perf.acc, f"{path}.acc").name, perf.units), perf


def _cheapest_of_each(
    fit: Iterable[Sized], market: CardMarket, refused: dict[str, str]
) -> list[Sized]:
    """Returns for each accelerator the first option with enough cards, in the order given."""
    best: dict[str, Sized] = {}
    for each in fit:
        if market.max_cards is not None and each.cards > market.max_cards:
            reason = f"it needs {each.cards} cards, of at most {market.max_cards}"
            refused.setdefault(each.option.accelerator, reason)
        else:
            best.setdefault(each.option.accelerator, each)
    return list(best.values())


def _choice(demand: RequestDemand, each: Sized) -> Choice:
    option, candidate, speed = each.option, each.candidate, each.option.speed
    machine = option.machine
    return {
        "accelerator": option.accelerator,
        "title": machine.accelerator.title,
        "cardsPerReplica": machine.cards,
        "numReplicas": candidate.replicas,
        "cards": each.cards,
        "cost": shortest(each.cents),
        "costPerCard": shortest(option.cents / machine.cards),
        "maxBatch": candidate.batch,
        "maxRPM": shortest(60 * candidate.max_rate_per_s),
        "binds": each.bind,
        "utilization": shortest(candidate.utilization),
        "ttftAverage": shortest(candidate.ttft_ms),
        "itlAverage": shortest(candidate.itl_ms),
        "replicasRange": _range(each.replicas),
        "costRange": _range(each.cents_bounds),
        "ttftRange": _range(each.ttft_ms),
        "itlRange": _range(each.itl_ms),
        "memory": {
            "weights": machine.weights_bytes,
            "ofRequest": machine.cache_bytes(demand.tokens),
            "usable": machine.memory_bytes,
        },
        "speed": {
            "kind": speed.kind,
            "error": shortest(speed.error),
            "points": speed.points,
            "promptsEstimated": speed.prompts_are_estimated,
            "engines": list(speed.engines),
            "sources": list(speed.sources),
        },
    }


def _range(bounds: Bounds) -> Range:
    low, high = bounds
    return {"low": shortest(low), "high": shortest(high) if high < ENDLESS else None}


def _nearest(demand: RequestDemand, unfit: list[Unfit]) -> Nearest | None:
    if not unfit:
        return None
    least = min(unfit, key=lambda each: (each.shortfall(demand), each.option.cents))
    return {
        "accelerator": least.option.name,
        "ttftAverage": shortest(least.best_ttft_ms),
        "itlAverage": shortest(least.best_itl_ms),
    }


def _notes(demand: RequestDemand, market: CardMarket, best: list[Sized]) -> Iterable[str]:
    kinds = {each.option.speed.kind for each in best}
    if "estimated" in kinds:
        error = market.calibration.error_of(demand.model)
        yield (
            f"Estimated speeds are the datasheet's, calibrated on other pairs; left out in turn, "
            f"those were missed by {error:.0%} (one standard deviation)."
        )
    if "fitted" in kinds:
        yield "Fitted speeds are of the engines named, of the day they were published."
    if any(each.option.speed.kind == "measured" and not each.option.speed.error for each in best):
        yield "Measured data without errors has no interval: its own are unknown."
    if best:
        yield "Measure the one you choose and give the fit with --perf before you buy."
