"""A table of all pairs of a server with traffic and an accelerator it may use.

`size_pairs` builds it; the candidates are made from it. Immutable: any thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.numerics import BoolArray, FloatArray, IntArray
from optimizer.candidates.eligibility import Eligible
from optimizer.candidates.replicas import (
    DEFAULT_QUEUE,
    GEOMETRIC,
    ReplicaTable,
    RequestTable,
    SizingCache,
    Speeds,
)
from optimizer.errors import Fault, InvalidRequest
from optimizer.model.sizing import Sizing
from optimizer.spec import AcceleratorSpec, PerfData, ServerSpec
from optimizer.system import System

MAX_REPLICAS = 10**9  # more than this is a mistake in the data, not a plan
MAX_PAIRS = 10**6  # sized together; each takes about a kilobyte

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Option:
    """An accelerator that has performance data for a model."""

    accelerator: AcceleratorSpec
    perf: PerfData

    @property
    def cards_per_replica(self) -> int:
        return self.perf.units * self.accelerator.multiplicity

    @property
    def cost_per_replica(self) -> np.float32:
        """Cents per hour."""
        return np.float32(self.accelerator.cost) * np.float32(self.perf.units)


class OptionTable:
    """All options of a system, numbered, with their data as columns. Immutable: any thread."""

    def __init__(self, system: System) -> None:
        self.options: list[Option] = []
        self._by_model: dict[str, range] = {}
        for model, by_accelerator in system.models.items():
            first = len(self.options)
            self.options += [
                Option(system.accelerators[name], perf)
                for name, perf in by_accelerator.items()
                if name in system.accelerators
            ]
            self._by_model[model] = range(first, len(self.options))
        self.speeds = Speeds.of(option.perf for option in self.options)
        self.names = np.array([o.accelerator.name for o in self.options], dtype=np.object_)
        self.types = np.array([o.accelerator.type for o in self.options], dtype=np.object_)
        self.cards = np.array([o.cards_per_replica for o in self.options], dtype=np.int64)
        self.costs = np.array([o.cost_per_replica for o in self.options], dtype=np.float32)

    def of_model(self, model: str) -> Sequence[int]:
        """Returns the numbers of a model's options."""
        return self._by_model.get(model, range(0))

    def of_server(self, server: ServerSpec) -> Sequence[int]:
        """Returns the numbers of a server's options: all of its model's, or the one it must
        keep."""
        numbers = self.of_model(server.model)
        if server.keep_accelerator and server.current_alloc.accelerator:
            keep = server.current_alloc.accelerator
            return [number for number in numbers if self.names[number] == keep]
        return numbers


@dataclass(frozen=True, slots=True)
class PairTable:
    """Aligned arrays, one entry per pair; `server` and `option` index `servers` and `options`."""

    servers: Sequence[Eligible]
    options: OptionTable
    server: IntArray
    option: IntArray
    demand_per_s: FloatArray  # the server's demand
    replica: ReplicaTable
    is_valid: BoolArray  # whether the replica can be computed
    sizing: Sizing  # zeros if it cannot
    needed: FloatArray  # replicas that the demand needs
    replicas: FloatArray  # replicas that the candidate has
    is_capped: BoolArray  # whether maxNumReplicas allows fewer than needed
    is_candidate: BoolArray


def size_pairs(servers: Sequence[Eligible], options: OptionTable, cache: SizingCache) -> PairTable:
    """Returns the table for servers that all have traffic."""
    numbers = [options.of_server(item.server) for item in servers]
    server = np.repeat(np.arange(len(servers)), [len(of_server) for of_server in numbers])
    option = np.array([number for of_server in numbers for number in of_server], dtype=np.int64)
    work = RequestTable.from_rows([workload_row(item) for item in servers])
    replica = ReplicaTable.of(options.speeds.take(option), work.take(server))
    is_valid = replica.is_valid()
    rows = np.flatnonzero(is_valid)
    sizing = Sizing.zeros(server.size)
    sizing.put(rows, cache.size(replica.take(rows)))
    bounds = [(s.demand_per_s, s.server.min_num_replicas, s.server.most_replicas) for s in servers]
    demand_per_s, fewest, most = np.array(bounds, dtype=np.float64).reshape(-1, 3)[server].T
    with np.errstate(divide="ignore"):
        needed = demand_per_s / (1000 * sizing.throughput_per_ms)
    # 1e-9: rounding must not turn a demand of exactly k replicas into k + 1.
    needed = np.maximum(np.ceil(needed * (1 - 1e-9)), np.maximum(fewest, 1))
    is_sizable = sizing.feasible & (needed <= MAX_REPLICAS)
    is_within = is_sizable & (needed <= most)
    has_room = np.zeros(len(servers), dtype=np.bool_)
    has_room[server[is_within]] = True
    # If no accelerator suffices within maxNumReplicas, offer maxNumReplicas overloaded replicas.
    is_capped = is_sizable & ~has_room[server] & (most > 0)
    return PairTable(
        servers=servers,
        options=options,
        server=server,
        option=option,
        demand_per_s=demand_per_s,
        replica=replica,
        is_valid=is_valid,
        sizing=sizing,
        needed=needed,
        replicas=np.where(is_capped, most, needed),
        is_capped=is_capped,
        is_candidate=is_within | is_capped,
    )


def check_pairs(servers: Iterable[Eligible], options: OptionTable) -> None:
    """Raises InvalidRequest for more pairs than may be sized together."""
    num_pairs = sum(len(options.of_model(item.server.model)) for item in servers)
    if num_pairs > MAX_PAIRS:
        message = (
            f"{num_pairs} pairs of a server and an accelerator with data for its model are more "
            f"than {MAX_PAIRS}; split the system, or give its models less modelData"
        )
        raise InvalidRequest([Fault("", message)])


def workload_row(item: Eligible) -> tuple[float, ...]:
    """Returns the fields of a `RequestTable`, in their order."""
    server, target = item.server, item.target
    load = server.current_alloc.load
    return (
        load.avg_in_tokens,
        item.out_tokens,
        server.max_batch_size,
        DEFAULT_QUEUE if server.max_queue_size is None else server.max_queue_size,
        target.slo_ttft,
        target.slo_itl,
        target.slo_tps,
        GEOMETRIC if load.out_tokens_scv is None else load.out_tokens_scv,
    )
