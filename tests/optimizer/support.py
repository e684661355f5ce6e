"""Small systems and replicas for tests."""

from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.candidates.replicas import SizingCache
from optimizer.inferno_json import read
from optimizer.model.latency import PhaseModel
from optimizer.model.queueing import Replica
from optimizer.optimize import SolveOptions
from optimizer.service import ServiceOptions
from optimizer.spec import SystemData
from optimizer.system import System

ACCELERATORS = [
    {"name": "A", "type": "A", "multiplicity": 1, "cost": 10.0,
     "power": {"idle": 100, "full": 400, "midPower": 300, "midUtil": 0.5}},
    {"name": "B", "type": "B", "multiplicity": 2, "cost": 17.0},
]  # fmt: skip
SPEED = {"decodeParms": {"alpha": 10, "beta": 0.3}, "prefillParms": {"gamma": 20, "delta": 0.01}}


def perf(acc: str, **fields: Any) -> dict[str, Any]:
    return {"name": "m", "acc": acc, "accCount": 1, "maxBatchSize": 16, "atTokens": 512, **SPEED,
            **fields}  # fmt: skip


def server(name: str = "s", rate: float | None = 120, **fields: Any) -> dict[str, Any]:
    """A server of class c and model m. Load fields may be given by their JSON names."""
    load = {"arrivalRate": rate, "avgInTokens": 128, "avgOutTokens": 512}
    load |= {key: fields.pop(key) for key in list(fields) if key in load}
    current = {**fields.pop("currentAlloc", {}), "load": load}
    return {"name": name, "class": "c", "model": "m", "currentAlloc": current, **fields}


def target(**levels: float) -> dict[str, Any]:
    return {"model": "m", **{name.replace("_", "-"): level for name, level in levels.items()}}


def system_data(
    servers: list[dict[str, Any]],
    *,
    perfs: list[dict[str, Any]] | None = None,
    targets: dict[str, Any] | None = None,
    capacity: dict[str, int] | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """Model m on accelerators A and B, class c with ITL 14 ms and TTFT 500 ms."""
    level = target(slo_itl=14, slo_ttft=500) if targets is None else targets
    counts = {"A": 10, "B": 10} if capacity is None else capacity
    return {"system": {
        "acceleratorData": {"accelerators": ACCELERATORS},
        "modelData": {"models": [perf("A"), perf("B")] if perfs is None else perfs},
        "serviceClassData": {"serviceClasses": [
            {"name": "c", "priority": 1, "modelTargets": [level]},
            {"name": "low", "priority": 5, "modelTargets": [level]},
        ]},
        "serverData": {"servers": servers},
        "capacityData": {"count": [{"type": t, "count": n} for t, n in counts.items()]},
        "optimizerData": {"optimizer": flags},
    }}  # fmt: skip


def system(servers: list[dict[str, Any]], **options: Any) -> System:
    return System.from_spec(read(SystemData, system_data(servers, **options)).system)


def options(**fields: Any) -> ServiceOptions:
    return ServiceOptions(SolveOptions(SizingCache()), **fields)


def replica(
    *,
    in_tokens: float = 128,
    out_tokens: float = 512,
    batch: int = 16,
    queue: int = 160,
    **speed: float,
) -> Replica:
    """One pair; `speed` in alpha, beta, gamma, delta."""
    parms = {"alpha": 10.0, "beta": 0.3, "gamma": 20.0, "delta": 0.01} | speed
    values = (*parms.values(), in_tokens, out_tokens)
    model = PhaseModel(*(np.array([float(value)]) for value in values))
    return Replica(model, np.array([batch]), np.array([queue]))


def random_replicas(count: int, seed: int, max_batch: int = 64) -> Replica:
    """Parameters as they are measured on real accelerators, log-uniform."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> npt.NDArray[np.float64]:
        return np.exp(rng.uniform(np.log(low), np.log(high), count))

    model = PhaseModel(
        between(2, 40), between(0.01, 2), between(1, 300), between(3e-4, 0.05),
        np.round(between(1, 4000)), np.round(between(2, 2000)),
    )  # fmt: skip
    batch = rng.integers(1, max_batch + 1, count)
    return Replica(model, batch, 10 * batch)
