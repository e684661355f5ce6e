"""The candidates of every server: for each accelerator how many replicas, at what cost, how fast.

All pairs are computed together. Costs and values are float32, rounded step by step as in the
reference, so that near ties fall as they do there. Pure: any thread.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from optimizer.candidates.eligibility import (
    UNBOUNDED,
    Eligible,
    Option,
    Pairs,
    PerfTable,
    Refusal,
    eligible,
    gather,
)
from optimizer.candidates.replicas import ReplicaTable, SizedRows, SizingCache
from optimizer.model.latency import BoolArray, FloatArray
from optimizer.model.queueing import MAX_BATCH
from optimizer.solver import MOVE_PENALTY, Candidate, Contender
from optimizer.spec import ServerSpec
from optimizer.system import System

MAX_REPLICAS = 10**9  # more than this is a mistake in the data, not a plan

Float32Array = npt.NDArray[np.float32]

NOTHING = Candidate("", "", 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)  # scale to zero


@dataclass(frozen=True, slots=True)
class Offers:
    """What the solvers may choose from, and why they may not choose the rest."""

    contenders: tuple[Contender, ...]
    refused_servers: dict[str, Refusal] = field(default_factory=dict)
    refused_pairs: dict[str, dict[str, Refusal]] = field(default_factory=dict)


def offers(system: System, cache: SizingCache) -> Offers:
    """Candidates of every server of a system."""
    table = PerfTable(system)
    busy: list[Eligible] = []
    contenders: dict[str, Contender] = {}
    refused_servers: dict[str, Refusal] = {}
    for server in system.servers.values():
        item = eligible(system, server)
        if isinstance(item, Refusal):
            refused_servers[server.name] = item
        elif item.is_idle:
            contenders[server.name] = _contender(item, _idle_candidates(item, table))
        else:
            busy.append(item)
    found, refused_pairs = _busy_candidates(busy, table, cache)
    for index, item in enumerate(busy):
        contenders[item.server.name] = _contender(item, found[index])
    for name, contender in contenders.items():
        if not contender.candidates:
            refused_servers[name] = _no_candidate(system.servers[name], refused_pairs.get(name, {}))
    return Offers(
        contenders=tuple(c for c in contenders.values() if c.candidates),
        refused_servers=refused_servers,
        refused_pairs=refused_pairs,
    )


def _contender(item: Eligible, candidates: list[Candidate]) -> Contender:
    current = item.server.current_alloc
    return Contender(
        server=item.server.name,
        priority=item.priority,
        candidates=tuple(sorted(candidates, key=lambda c: (c.value, c.cost, c.accelerator))),
        demand_per_s=0.0 if item.is_idle else item.demand_per_s,
        min_replicas=item.server.min_num_replicas,
        max_replicas=item.server.max_num_replicas,
        current_accelerator=current.accelerator,
        current_cost=current.total_cost,
    )


def _no_candidate(server: ServerSpec, refused: dict[str, Refusal]) -> Refusal:
    """The refusal of a server whose accelerators were all refused: that of the nearest miss."""
    if not refused:
        if server.keep_accelerator and server.current_alloc.accelerator:
            kept = server.current_alloc.accelerator
            return Refusal("accelerator", f"accelerator {kept}, which it must keep, cannot run it")
        return Refusal("perf", f"no accelerator has performance data for model {server.model}")
    name, nearest = min(refused.items(), key=lambda entry: (_overshoot(entry[1]), entry[0]))
    return Refusal(nearest.code, f"{nearest.message} (on {name})", nearest.bound, nearest.best)


def _overshoot(refusal: Refusal) -> float:
    if refusal.best is None or not refusal.bound:
        return float("inf")
    return refusal.best / refusal.bound


def value_of(server: ServerSpec, accelerator: str, replicas: int, cost: float) -> float:
    """Cost of going from a server's current allocation to another; lower is better.

    Same accelerator: the cost difference, 0 for the same replicas. Another accelerator: the
    difference and 0.1 of both costs, the price of moving. In float32, in this order.
    """
    current = server.current_alloc
    same = accelerator == current.accelerator
    values = _values(
        np.array([cost], np.float32),
        np.array([current.total_cost], np.float32),
        np.array([same]),
        np.array([same and replicas == current.num_replicas]),
    )
    return float(values[0])


def _values(
    cost: Float32Array, current: Float32Array, same: BoolArray, unchanged: BoolArray
) -> Float32Array:
    difference = cost - current
    moved = np.float32(MOVE_PENALTY) * (current + cost) + difference
    return np.where(unchanged, np.float32(0), np.where(same, difference, moved))


def _idle_candidates(item: Eligible, table: PerfTable) -> list[Candidate]:
    """Without load a server keeps its minimum of replicas, or nothing at all."""
    server, replicas = item.server, item.server.min_num_replicas
    if replicas == 0:
        return [NOTHING._replace(value=value_of(server, "", 0, 0.0))]
    return [idle_candidate(server, option, replicas) for option in table.options(server)]


def idle_candidate(server: ServerSpec, option: Option, replicas: int) -> Candidate:
    """Replicas without load: latencies are those of a lone request, no target is checked."""
    perf, accelerator = option.perf, option.accelerator
    batch = min(server.max_batch_size or perf.max_batch_size, MAX_BATCH)
    if perf.uses_iterations and perf.perf_parms is not None:
        itl_ms = perf.perf_parms.alpha + perf.perf_parms.beta
        ttft_ms = itl_ms + perf.perf_parms.gamma * batch
        service_ms = perf.perf_parms.alpha + perf.perf_parms.beta * batch
    else:
        decode, prefill = perf.decode_parms, perf.prefill_parms
        itl_ms = decode.alpha + decode.beta
        ttft_ms = prefill.gamma + prefill.delta
        service_ms = ttft_ms + decode.alpha + decode.beta * batch
    unit_cost = np.float32(accelerator.cost) * np.float32(perf.units)
    cost = float(unit_cost * np.float32(replicas))
    return Candidate(
        accelerator=accelerator.name,
        card_type=accelerator.type,
        replicas=replicas,
        batch=batch,
        cost=cost,
        value=value_of(server, accelerator.name, replicas, cost),
        itl_ms=itl_ms,
        ttft_ms=ttft_ms,
        utilization=0.0,
        max_rate_per_s=1000 * batch / service_ms if service_ms > 0 else 0.0,
        cards_per_replica=perf.units * accelerator.multiplicity,
        cost_per_replica=float(unit_cost),
    )


def _busy_candidates(
    servers: list[Eligible], table: PerfTable, cache: SizingCache
) -> tuple[dict[int, list[Candidate]], dict[str, dict[str, Refusal]]]:
    """Candidates by index into `servers`, and refusals by server and accelerator name."""
    pairs = gather(servers, table)
    every = ReplicaTable.from_pairs(pairs, table)
    valid = every.is_valid()
    sized = np.zeros((valid.size, len(SizedRows.COLUMNS)))
    sized[valid] = cache.size(ReplicaTable(every.parameters[valid]))
    batch = _Batch(servers, table, pairs, every, sized)
    refused: dict[str, dict[str, Refusal]] = defaultdict(dict)
    for pair in np.flatnonzero(~batch.is_candidate):
        server, option = servers[pairs.server[pair]], table.all[pairs.option[pair]]
        refused[server.server.name][option.accelerator.name] = batch.refusal(
            server, int(pair), bool(valid[pair])
        )
    return batch.candidates(), dict(refused)


class _Batch:
    """The vectors from sizing to candidates. Lives for one call."""

    def __init__(
        self,
        servers: list[Eligible],
        table: PerfTable,
        pairs: Pairs,
        replicas: ReplicaTable,
        sized: FloatArray,
    ) -> None:
        self._servers, self._table, self._pairs = servers, table, pairs
        self._sized, self._parameters = sized, replicas
        rate_per_s = 1000 * sized[:, SizedRows.THROUGHPUT]
        with np.errstate(divide="ignore"):
            needed = pairs.demand_per_s / rate_per_s
        # 1e-9: a demand of exactly k replicas must not ask for k + 1 by rounding.
        needed = np.maximum(np.ceil(needed * (1 - 1e-9)), np.maximum(pairs.min_replicas, 1))
        self.needed = needed
        sizable = (sized[:, SizedRows.FEASIBLE] > 0) & (needed <= MAX_REPLICAS)
        within = sizable & ((pairs.max_replicas == UNBOUNDED) | (needed <= pairs.max_replicas))
        has_room = np.zeros(len(servers), dtype=np.bool_)
        has_room[pairs.server[within]] = True
        # Where no accelerator does it within maxNumReplicas, offer that many, overloaded.
        self._capped = sizable & ~has_room[pairs.server] & (pairs.max_replicas > 0)
        self._replicas = np.where(self._capped, pairs.max_replicas, needed)
        self.is_candidate = within | self._capped

    def refusal(self, item: Eligible, pair: int, is_valid: bool) -> Refusal:
        """Why this pair is no candidate."""
        row = self._sized[pair]
        if not is_valid:
            return Refusal(
                "parameters", "its parameters give a service time of 0, or one place and no queue"
            )
        for name, target, best in (
            ("TTFT", item.target.slo_ttft, float(row[SizedRows.BEST_TTFT])),
            ("ITL", item.target.slo_itl, float(row[SizedRows.BEST_ITL])),
        ):
            if target and best > target:
                over = 100 * (best / target - 1)
                return Refusal(
                    name.lower(),
                    f"{name}: an idle replica takes {best:.6g} ms, "
                    f"{over:.3g} % over the target of {target:g} ms",
                    target,
                    best,
                )
        limit = item.server.max_num_replicas
        bound = MAX_REPLICAS if limit is None else limit
        needed = float(self.needed[pair])
        return Refusal("replicas", f"replicas: {needed:.6g} needed, {bound} allowed", bound, needed)

    def candidates(self) -> dict[int, list[Candidate]]:
        """Everything the solvers need about the pairs that are candidates."""
        chosen = np.flatnonzero(self.is_candidate)
        pairs, options = self._pairs, [self._table.all[o] for o in self._pairs.option[chosen]]
        replicas = self._replicas[chosen]
        rate_per_ms = pairs.demand_per_s[chosen] / replicas / 1000
        found = ReplicaTable(self._parameters.parameters[chosen]).analyze(rate_per_ms)
        unit_cost, cost, value = self._prices(chosen, options, replicas)
        columns = (
            pairs.server[chosen],
            replicas.astype(np.int64),
            self._parameters.batch[chosen],
            cost,
            value,
            found.itl_ms,
            found.ttft_ms,
            found.utilization,
            1000 * self._sized[chosen, SizedRows.THROUGHPUT],
            unit_cost,
            self._capped[chosen],
            found.loss,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        by_server: dict[int, list[Candidate]] = defaultdict(list)
        for option, (server, *row) in zip(options, rows, strict=True):
            accelerator, units = option.accelerator, option.perf.units
            *measures, unit, capped, loss = row
            cards = units * accelerator.multiplicity
            by_server[server].append(
                Candidate._make(
                    (accelerator.name, accelerator.type, *measures, cards, unit, capped, loss)
                )
            )
        return by_server

    def _prices(
        self, chosen: npt.NDArray[np.int64], options: list[Option], replicas: FloatArray
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        """(cost of a replica, cost, value) of each candidate."""
        price = np.array([option.accelerator.cost for option in options], dtype=np.float32)
        units = np.array([option.perf.units for option in options], dtype=np.float32)
        unit_cost = price * units
        cost = unit_cost * replicas.astype(np.float32)
        current = [self._servers[s].server.current_alloc for s in self._pairs.server[chosen]]
        same = np.array(
            [c.accelerator == o.accelerator.name for c, o in zip(current, options, strict=True)],
            dtype=np.bool_,
        )
        unchanged = same & (np.array([c.num_replicas for c in current], dtype=np.int64) == replicas)
        current_cost = np.array([c.total_cost for c in current], dtype=np.float32)
        return unit_cost, cost, _values(cost, current_cost, same, unchanged)
