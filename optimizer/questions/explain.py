"""Explains an allocation: for every accelerator, whether it is feasible or which bound fails, and
whether the other servers leave enough cards.

Pure, except for the sizing cache: any thread.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NotRequired

import numpy as np

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.candidates.allocation import offers
from optimizer.candidates.eligibility import Eligible, Refusal, eligible
from optimizer.candidates.pairs import OptionTable, workload_row
from optimizer.candidates.replicas import ReplicaTable, RequestTable, SizingCache
from optimizer.questions.queries import MaxRates, max_rates
from optimizer.solver import Candidate
from optimizer.spec import AllocationJson, ModelTargetJson, ServerSpec
from optimizer.system import System, in_order, lookup

TOO_FEW = "replicas: maxNumReplicas is below what it needs"


class Refused(WireDict):
    code: str
    message: str
    bound: NotRequired[float]
    best: NotRequired[float]
    overBy: NotRequired[float]


class Shortage(WireDict):
    """A lack of cards: the number that a candidate needs, and how many of `count` are left."""

    type: str
    needed: int
    left: int
    count: int
    message: str


class Verdict(WireDict):
    """Whether an accelerator suits a server. Only candidates that could be sized have figures."""

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


class Rates(WireDict):
    maxRateFor: NotRequired[MaxRates]


class CandidateAnswer(Verdict, Rates):
    """`maxRateFor` is there if the accelerator has performance data; see `Verdict` for figures."""

    accelerator: str
    shortage: Shortage | None


class Explanation(WireDict):
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
    candidates = offered.contenders[0].candidates if offered.contenders else ()
    by_accelerator = {candidate.accelerator: candidate for candidate in candidates}
    if (fault := offered.load_faults.get(name)) and fault.running:
        item: Eligible | Refusal = Refusal("load", fault.message)
    else:
        item = eligible(system, server, system.targets())
    refused = item if isinstance(item, Refusal) else offered.refused_servers.get(name)
    rates = _rates(system, item)
    others = (other for other in system.servers.values() if other.name != name)
    left = system.cards_left((other.model, other.desired_alloc) for other in others)
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
                **rates.get(accelerator.name, Rates()),
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
        "reason": Refused(code="replicas", message=TOO_FEW) if candidate.capped else None,
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


def _shortage(
    system: System, candidate: Candidate | None, left: Mapping[str, int]
) -> Shortage | None:
    """Returns the shortage of cards for all replicas of a candidate; None if they suffice."""
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
    """Returns why an accelerator was not considered."""
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


def _rates(system: System, item: Eligible | Refusal) -> dict[str, Rates]:
    """Returns the highest rates of one replica, by accelerator."""
    if isinstance(item, Refusal) or item.is_idle:
        return {}
    options = OptionTable(system)
    numbers = np.array(options.of_model(item.server.model), dtype=np.int64)
    work = RequestTable.from_rows([workload_row(item)] * numbers.size)
    table = ReplicaTable.of(options.speeds.take(numbers), work)
    rows = np.flatnonzero(table.is_valid())
    sizing = table.take(rows).size()
    names = options.names[numbers[rows]]
    return {name: Rates(maxRateFor=max_rates(sizing, row)) for row, name in enumerate(names)}
