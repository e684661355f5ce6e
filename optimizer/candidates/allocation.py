"""The candidates of every server: for each accelerator, its replicas, cost and latencies.

All pairs are computed together. Costs and values are float32, rounded step by step as in the
reference, so that near ties are decided in the same way. Pure: any thread.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from common.numerics import BoolArray, IntArray
from optimizer.candidates.curves import step_curve
from optimizer.candidates.eligibility import Eligible, LoadFault, Refusal, eligible, load_fault
from optimizer.candidates.pairs import (
    MAX_REPLICAS,
    Float32Array,
    Option,
    OptionTable,
    PairTable,
    check_pairs,
    size_pairs,
)
from optimizer.candidates.replicas import SizingCache
from optimizer.model.curve_rates import Shape, all_rates
from optimizer.model.queueing import MAX_BATCH
from optimizer.solver import MOVE_PENALTY, Candidate, Contender
from optimizer.spec import ServerSpec
from optimizer.system import System

NOTHING = Candidate("", "", 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)  # scale to zero


@dataclass(frozen=True, slots=True)
class Offers:
    """The candidates for solvers, and refusals of servers and pairs that have none."""

    contenders: tuple[Contender, ...]
    pairs: PairTable  # pairs of servers with traffic; `Candidate.row` is an index into it
    refused_servers: dict[str, Refusal] = field(default_factory=dict)
    refused_pairs: dict[str, dict[str, Refusal]] = field(default_factory=dict)
    load_faults: dict[str, LoadFault] = field(default_factory=dict)


def offers(system: System, cache: SizingCache) -> Offers:
    """Returns every server's candidates. Raises InvalidRequest for too many pairs."""
    options, targets = OptionTable(system), system.targets()
    faults = {
        name: fault
        for name, server in system.servers.items()
        if (fault := load_fault(system, server))
    }
    items: dict[str, Eligible | Refusal] = {}
    for name, server in system.servers.items():
        if name not in faults:
            items[name] = eligible(system, server, targets)
        elif not faults[name].running:
            kept = server.model_copy(update={"keep_accelerator": True})
            items[name] = eligible(system, kept, targets)
    check_pairs([item for item in items.values() if isinstance(item, Eligible)], options)
    busy: list[Eligible] = []
    contenders: dict[str, Contender] = {}
    refused_servers: dict[str, Refusal] = {}
    for name, item in items.items():
        if isinstance(item, Refusal):
            refused_servers[name] = item
        elif item.is_idle:
            contenders[name] = _contender(item, _idle_candidates(item, options))
        else:
            busy.append(item)
    pairs = size_pairs(busy, options, cache)
    found, refused_pairs = candidates_of(pairs), refusals_of(pairs)
    for index, item in enumerate(busy):
        contenders[item.server.name] = _contender(item, found[index])
    for name, contender in contenders.items():
        if not contender.candidates:
            refused_servers[name] = _no_candidate(system.servers[name], refused_pairs.get(name, {}))
    return Offers(
        contenders=tuple(c for c in contenders.values() if c.candidates),
        pairs=pairs,
        refused_servers=refused_servers,
        refused_pairs=refused_pairs,
        load_faults=faults,
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
    """Returns the refusal of a server without candidates: the refusal of the accelerator that comes
    nearest to its bound."""
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
    """Returns the value of changing a server's current allocation to another; lower is better.

    On the same accelerator it is the cost difference. On another one, the price of moving is
    added: 0.1 of both costs. Computed in float32, in this order.
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


def _idle_candidates(item: Eligible, options: OptionTable) -> list[Candidate]:
    """Returns the candidates of a server without load. They have its minimum number of replicas."""
    server, replicas = item.server, item.server.min_num_replicas
    if replicas == 0:
        return [NOTHING._replace(value=value_of(server, "", 0, 0.0))]
    return [
        idle_candidate(server, options.options[number], replicas)
        for number in options.of_server(server)
    ]


def idle_candidate(server: ServerSpec, option: Option, replicas: int) -> Candidate:
    """Returns replicas without load, with the latencies of a single request. Targets are not
    checked."""
    perf, accelerator = option.perf, option.accelerator
    batch = min(server.max_batch_size or perf.max_batch_size, MAX_BATCH)
    if perf.service_curve is not None:
        curve, load = step_curve(perf.service_curve), server.current_alloc.load
        shape = Shape(load.avg_in_tokens, max(load.avg_out_tokens, 1))
        rates, saturated = all_rates(curve, shape, max(batch, 1))
        itl_ms = float(rates.decode_ms[0])
        ttft_ms = float(rates.first_token_ms[0]) + float(curve.overhead.at(np.ones(1))[0])
        service_ms = batch / float(saturated.rate_per_ms[0])
    elif parms := perf.iteration_parms:
        itl_ms = parms.alpha + parms.beta
        ttft_ms = itl_ms + parms.gamma * batch
        service_ms = parms.alpha + parms.beta * batch
    else:
        decode, prefill = perf.decode_parms, perf.prefill_parms
        itl_ms = decode.alpha + decode.beta
        ttft_ms = prefill.gamma + prefill.delta
        service_ms = ttft_ms + decode.alpha + decode.beta * batch
    cost = float(option.cost_per_replica * np.float32(replicas))
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
        cards_per_replica=option.cards_per_replica,
        cost_per_replica=float(option.cost_per_replica),
    )


def refusals_of(pairs: PairTable) -> dict[str, dict[str, Refusal]]:
    """Returns why pairs are no candidates, by server and accelerator name."""
    refused: dict[str, dict[str, Refusal]] = defaultdict(dict)
    for row in np.flatnonzero(~pairs.is_candidate).tolist():
        name = pairs.servers[pairs.server[row]].server.name
        refused[name][pairs.options.names[pairs.option[row]]] = _refusal(pairs, row)
    return dict(refused)


def _refusal(pairs: PairTable, row: int) -> Refusal:
    if not pairs.is_valid[row]:
        return Refusal(
            "parameters", "its parameters give a service time of 0, or one place and no queue"
        )
    item = pairs.servers[pairs.server[row]]
    for name, target, best in (
        ("TTFT", item.target.slo_ttft, float(pairs.sizing.best_ttft_ms[row])),
        ("ITL", item.target.slo_itl, float(pairs.sizing.best_itl_ms[row])),
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
    needed = float(pairs.needed[row])
    return Refusal("replicas", f"replicas: {needed:.6g} needed, {bound} allowed", bound, needed)


def candidates_of(pairs: PairTable) -> dict[int, list[Candidate]]:
    """Returns the candidates of each server, by its index in `pairs.servers`."""
    rows = np.flatnonzero(pairs.is_candidate)
    option, replicas = pairs.option[rows], pairs.replicas[rows]
    found = pairs.replica.take(rows).analyze(pairs.demand_per_s[rows] / replicas / 1000)
    cost = pairs.options.costs[option] * replicas.astype(np.float32)
    columns = {
        "accelerator": pairs.options.names[option],
        "card_type": pairs.options.types[option],
        "replicas": replicas.astype(np.int64),
        "batch": pairs.replica.max_batch[rows].astype(np.int64),
        "cost": cost,
        "value": _transition_values(pairs, rows, cost),
        "itl_ms": found.itl_ms,
        "ttft_ms": found.ttft_ms,
        "utilization": found.utilization,
        "max_rate_per_s": 1000 * pairs.sizing.throughput_per_ms[rows],
        "cards_per_replica": pairs.options.cards[option],
        "cost_per_replica": pairs.options.costs[option],
        "capped": pairs.is_capped[rows],
        "loss": found.loss,
        "row": rows,
    }
    in_order = (columns[name].tolist() for name in Candidate._fields)
    by_server: dict[int, list[Candidate]] = defaultdict(list)
    for server, *fields in zip(pairs.server[rows].tolist(), *in_order, strict=True):
        by_server[server].append(Candidate._make(fields))
    return by_server


def _transition_values(pairs: PairTable, rows: IntArray, cost: Float32Array) -> Float32Array:
    """Returns `value_of` for each of `rows`."""
    allocs = [item.server.current_alloc for item in pairs.servers]
    server = pairs.server[rows]
    accelerator = np.array([a.accelerator for a in allocs], dtype=np.object_)[server]
    replicas = np.array([a.num_replicas for a in allocs], dtype=np.int64)[server]
    current_cost = np.array([a.total_cost for a in allocs], dtype=np.float32)[server]
    same = np.asarray(accelerator == pairs.options.names[pairs.option[rows]], dtype=np.bool_)
    return _values(cost, current_cost, same, same & (replicas == pairs.replicas[rows]))
