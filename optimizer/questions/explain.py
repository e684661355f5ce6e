"""Why a server got what it got: every accelerator, feasible or with the bound that failed, and
whether the other servers leave enough cards for it.

Pure but for the sizing cache: any thread.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NotRequired

import numpy as np

from optimizer.answer import shortest
from optimizer.candidates.allocation import offers
from optimizer.candidates.eligibility import Eligible, Refusal, eligible
from optimizer.candidates.replicas import (
    ReplicaTable,
    SizedRows,
    SizingCache,
    max_batch,
    replica_row,
)
from optimizer.inferno_json import JsonObject
from optimizer.questions.queries import PER_MINUTE, MaxRates
from optimizer.solver import Candidate
from optimizer.spec import AllocationJson, ModelTargetJson, ServerSpec
from optimizer.system import System, in_order, lookup


class Refused(JsonObject):
    code: str
    message: str
    bound: NotRequired[float]
    best: NotRequired[float]
    overBy: NotRequired[float]


class Shortage(JsonObject):
    """Of cards: what a candidate needs, and what the other servers leave of `count`."""

    type: str
    needed: int
    left: int
    count: int
    message: str


class Verdict(JsonObject):
    """Figures are there for candidates that could be sized."""

    feasible: bool
    reason: Refused | None
    numReplicas: NotRequired[int]
    maxBatch: NotRequired[int]
    cards: NotRequired[int]
    cost: NotRequired[float]
    value: NotRequired[float]
    itlAverage: NotRequired[float]
    ttftAverage: NotRequired[float]
    utilization: NotRequired[float]
    maxRPM: NotRequired[float]


class Rates(JsonObject):
    maxRateFor: NotRequired[MaxRates]


class CandidateAnswer(Verdict, Rates):
    """Figures come with what could be sized, `maxRateFor` with what has performance data."""

    accelerator: str
    shortage: Shortage | None


class Explanation(JsonObject):
    server: str
    currentAlloc: AllocationJson
    desiredAlloc: AllocationJson
    refused: Refused | None
    targets: ModelTargetJson | None
    scaleToZero: bool
    candidates: list[CandidateAnswer]


def explain(system: System, name: str, cache: SizingCache) -> Explanation:
    """Returns the answer of GET /explain/<server>. Raises NotFound."""
    server = lookup("server", system.servers, name)
    alone = replace(system, servers={name: server})
    offered = offers(alone, cache)
    refused = offered.refused_servers.get(name)
    candidates = offered.contenders[0].candidates if offered.contenders else ()
    by_accelerator = {candidate.accelerator: candidate for candidate in candidates}
    item = eligible(system, server)
    left = _cards_left(system, server)
    return {
        "server": name,
        "currentAlloc": server.current_alloc.dump(),
        "desiredAlloc": server.desired_alloc.dump(),
        "refused": None if refused is None else _refusal(refused),
        "targets": item.target.dump() if isinstance(item, Eligible) else None,
        "scaleToZero": "" in by_accelerator,
        "candidates": [
            {
                "accelerator": accelerator.name,
                **_verdict(
                    by_accelerator.get(accelerator.name),
                    offered.refused_pairs.get(name, {}).get(accelerator.name)
                    or _missing(system, server, accelerator.name),
                ),
                **_rates(system, item, accelerator.name),
                "shortage": _shortage(system, by_accelerator.get(accelerator.name), left),
            }
            for accelerator in in_order(system.accelerators)
        ],
    }


def _verdict(candidate: Candidate | None, refusal: Refusal) -> Verdict:
    if candidate is None:
        return {"feasible": False, "reason": _refusal(refusal)}
    return {
        "feasible": not candidate.capped,
        "reason": None
        if not candidate.capped
        else {"code": "replicas", "message": "replicas: maxNumReplicas is below what it needs"},
        "numReplicas": candidate.replicas,
        "maxBatch": candidate.batch,
        "cards": candidate.cards,
        "cost": shortest(candidate.cost),
        "value": shortest(candidate.value),
        "itlAverage": shortest(candidate.itl_ms),
        "ttftAverage": shortest(candidate.ttft_ms),
        "utilization": shortest(candidate.utilization),
        "maxRPM": shortest(60 * candidate.max_rate_per_s),
    }


def _cards_left(system: System, server: ServerSpec) -> Mapping[str, int]:
    """By type: what the desired allocations of the other servers leave."""
    left = Counter(system.capacities)
    for other in system.servers.values():
        if other.name != server.name:
            left.subtract(system.cards(other.model, other.desired_alloc))
    return left


def _shortage(
    system: System, candidate: Candidate | None, left: Mapping[str, int]
) -> Shortage | None:
    """Returns the shortage of cards for all replicas of a candidate; None where they suffice."""
    if candidate is None or system.optimizer.unlimited:
        return None
    card_type, needed = candidate.card_type, candidate.cards
    count, free = system.capacities.get(card_type, 0), max(left.get(card_type, 0), 0)
    if needed <= free:
        return None
    others = f"the other servers leave {free} of {count}" if free < count else f"there are {count}"
    message = f"not enough cards left: it needs {needed} of type {card_type}, {others}"
    return {"type": card_type, "needed": needed, "left": free, "count": count, "message": message}


def _missing(system: System, server: ServerSpec, accelerator: str) -> Refusal:
    """Why an accelerator was not even tried."""
    if accelerator not in system.models.get(server.model, {}):
        return Refusal("perf", f"no performance data for model {server.model}")
    kept = server.current_alloc.accelerator
    if server.keep_accelerator and kept and kept != accelerator:
        return Refusal("keep", f"the server must keep {kept}")
    return Refusal("server", "the server itself is refused or runs nothing")


def _refusal(refusal: Refusal) -> Refused:
    refused = Refused(code=refusal.code, message=refusal.message)
    if refusal.bound is not None and refusal.best is not None:
        refused["bound"] = refusal.bound
        refused["best"] = shortest(refusal.best)
        if refusal.bound > 0:
            refused["overBy"] = shortest(refusal.best / refusal.bound - 1)
    return refused


def _rates(system: System, item: Eligible | Refusal, accelerator: str) -> Rates:
    perf = None
    if isinstance(item, Eligible) and not item.is_idle:
        perf = system.models[item.server.model].get(accelerator)
    if perf is None or isinstance(item, Refusal):
        return {}
    table = ReplicaTable(np.array([replica_row(perf, item, max_batch(perf, item))]))
    if not table.is_valid()[0]:
        return {}
    row = table.size()[0]
    return {
        "maxRateFor": {
            "slo-ttft": shortest(PER_MINUTE * row[SizedRows.FOR_TTFT]),
            "slo-itl": shortest(PER_MINUTE * row[SizedRows.FOR_ITL]),
            "slo-tps": shortest(PER_MINUTE * row[SizedRows.FOR_TPS]),
        }
    }
