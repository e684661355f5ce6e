"""Computes queue, highest rate and latencies of one replica of each pair.

Tables are immutable. Any thread may use them and the cache.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from common.numerics import BoolArray, FloatArray, IntArray
from optimizer.candidates.curves import Curves, curves_of, key_of
from optimizer.model.curve_chain import CurveReplica, CurveReplicas
from optimizer.model.curve_rates import Shape
from optimizer.model.latency import SHARED, Columns, IterationModel, LatencyModel, PhaseModel
from optimizer.model.queueing import MAX_BATCH, Performance, Replica
from optimizer.model.sizing import Replicas, Sizing, size
from optimizer.spec import PerfData

QUEUE_PER_BATCH = 10  # places to wait for each place in service, without maxQueueSize
DEFAULT_QUEUE = np.nan  # as `RequestTable.max_queue`
MAX_CACHED = 200_000  # distinct parameter sets in the cache, about 300 bytes each
GEOMETRIC = 1.0  # default squared coefficient of variation of output lengths


class Kind(IntEnum):
    """Latency models."""

    PHASE = 0
    ITERATION = 1
    CURVE = 2


@dataclass(frozen=True, slots=True)
class Speeds(Columns):
    """Performance data as columns, an entry per model and accelerator."""

    iterates: FloatArray  # 1 for parameters of IterationModel, 0 for PhaseModel
    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    delta_ms: FloatArray
    max_batch: FloatArray  # for requests of `at_tokens` output tokens
    at_tokens: FloatArray
    curve: FloatArray  # key in `curves`; 0: none, use the parameters
    curves: Curves = field(default_factory=dict, metadata=SHARED)

    @classmethod
    def of(cls, perfs: Iterable[PerfData]) -> "Speeds":
        perfs = list(perfs)
        return replace(cls.from_rows([_speed(perf) for perf in perfs]), curves=curves_of(perfs))

    def scaled_batch(self, out_tokens: FloatArray | int) -> FloatArray:
        """Returns the batch sizes for this number of output tokens, by the reference's rule."""
        return self.max_batch * self.at_tokens // out_tokens


def _speed(perf: PerfData) -> tuple[float, ...]:
    if p := perf.iteration_parms:
        parameters = (1.0, p.alpha, p.beta, p.gamma, 0.0)
    else:
        d, f = perf.decode_parms, perf.prefill_parms
        parameters = (0.0, d.alpha, d.beta, f.gamma, f.delta)
    batch = (float(perf.max_batch_size), float(perf.at_tokens))
    return (*parameters, *batch, key_of(perf.service_curve))


@dataclass(frozen=True, slots=True)
class RequestTable(Columns):
    """The requests that replicas serve, with limits and targets."""

    in_tokens: FloatArray
    out_tokens: FloatArray  # at least 1
    max_batch: FloatArray  # 0: as in `Speeds`
    max_queue: FloatArray  # DEFAULT_QUEUE: the model's
    ttft_ms: FloatArray  # targets; 0: none
    itl_ms: FloatArray
    tps: FloatArray
    out_scv: FloatArray  # variance of output lengths over their mean squared


@dataclass(frozen=True, slots=True)
class ReplicaTable(RequestTable):
    """All parameters that decide the performance of one replica of each pair; no defaults left."""

    iterates: FloatArray
    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    delta_ms: FloatArray
    curve: FloatArray  # its key; 0: none
    curves: Curves = field(default_factory=dict, metadata=SHARED, kw_only=True)
    # Chains by parameters, kept because a chain's rates take as long to compute as its solution.
    chains: dict[tuple[float, ...], CurveReplica] = field(
        default_factory=dict, metadata=SHARED, kw_only=True
    )

    @classmethod
    def of(cls, speed: Speeds, work: RequestTable) -> "ReplicaTable":
        """Joins the two tables, and fills in the default batch and queue sizes."""
        default_batch = np.maximum(speed.scaled_batch(work.out_tokens), 1)
        batch = np.where(work.max_batch > 0, work.max_batch, default_batch)
        batch = np.minimum(batch, MAX_BATCH)
        iterates = (speed.iterates > 0) & (speed.curve == 0)
        default_queue = np.where(iterates, 0.0, QUEUE_PER_BATCH * batch)
        queue = np.where(np.isnan(work.max_queue), default_queue, work.max_queue)
        full = replace(work, max_batch=batch, max_queue=queue)
        parameters = (speed.alpha_ms, speed.beta_ms, speed.gamma_ms, speed.delta_ms)
        columns = [*full.columns(), speed.iterates, *parameters, speed.curve]
        return cls(*columns, curves=speed.curves)

    def is_valid(self) -> BoolArray:
        """Returns whether service takes time and the system has more than one place."""
        valid = np.zeros(len(self), dtype=np.bool_)
        for rows, replica in self._by_model():
            valid[rows] = replica.is_valid()
        return valid

    def analyze(self, rate_per_ms: FloatArray) -> Performance:
        """Returns the performance of every replica at its rate. All must be valid."""
        found = Performance.zeros(len(self))
        for rows, replica in self._by_model():
            found.put(rows, replica.analyze(rate_per_ms[rows]))
        return found

    def size(self) -> Sizing:
        """Returns the highest rates of every replica. All must be valid."""
        found = Sizing.zeros(len(self))
        for rows, replica in self._by_model():
            targets = self.ttft_ms[rows], self.itl_ms[rows], self.tps[rows]
            found.put(rows, size(replica, *targets))
        return found

    def curve_replica(self, row: int) -> CurveReplica | None:
        """Returns the entry's chain, if it has a service curve."""
        if not self.curve[row]:
            return None
        columns = (self.in_tokens, self.out_tokens, self.out_scv, self.max_batch, self.max_queue)
        key = (float(self.curve[row]), *(float(column[row]) for column in columns))
        if key not in self.chains:
            curve, in_tokens, out_tokens, scv, batch, queue = key
            shape = Shape(in_tokens, out_tokens)
            self.chains[key] = CurveReplica(self.curves[curve], shape, scv, int(batch), int(queue))
        return self.chains[key]

    def _by_model(self) -> Iterator[tuple[IntArray, Replicas]]:
        """Yields the entries of each latency model and their replicas."""
        kinds = np.where(self.curve > 0, Kind.CURVE, self.iterates)
        for kind in Kind:
            rows = np.flatnonzero(kinds == kind)
            if rows.size:
                yield rows, self.take(rows)._replicas(kind)

    def _replicas(self, kind: Kind) -> Replicas:
        if kind is Kind.CURVE:
            chains = (self.curve_replica(row) for row in range(len(self)))
            return CurveReplicas([chain for chain in chains if chain is not None])
        parameters = (self.alpha_ms, self.beta_ms, self.gamma_ms)
        tokens = (self.in_tokens, self.out_tokens)
        model: LatencyModel = IterationModel(*parameters, *tokens)
        if kind is Kind.PHASE:
            model = PhaseModel(*parameters, self.delta_ms, *tokens)
        return Replica(model, self.max_batch.astype(np.int64), self.max_queue.astype(np.int64))


class SizingCache:
    """Caches sizings by parameters. Servers with the same model, class and shape of requests share
    entries, and so do successive solves.

    Any thread: entries are immutable and written whole; at worst two threads compute the same one.
    When full, the cache is emptied.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, FloatArray] = {}

    def size(self, table: ReplicaTable) -> Sizing:
        """Returns `ReplicaTable.size`, computing only parameter sets not seen before."""
        parameters = np.stack(table.columns(), axis=1)  # [pairs, columns]
        keys = parameters.view(f"V{parameters.itemsize * parameters.shape[1]}").ravel().tolist()
        rows = self._rows
        first_by_key = {key: row for row, key in enumerate(keys) if key not in rows}
        if first_by_key:
            new = table.take(np.array(list(first_by_key.values()))).size()
            if len(rows) + len(first_by_key) > MAX_CACHED:
                rows = self._rows = {key: rows[key] for key in keys if key in rows}
            rows.update(zip(first_by_key, np.stack(new.columns(), axis=1), strict=True))
        return Sizing.from_rows([rows[key] for key in keys])
