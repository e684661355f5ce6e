"""One replica of each pair: its queue, its highest rate, its latencies; sized once per parameters.

Tables are immutable; any thread may use them and the cache.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.model.latency import (
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    IterationModel,
    PhaseModel,
)
from optimizer.model.queueing import MAX_BATCH, Performance, Replica, analyze
from optimizer.model.sizing import Sizing, Targets, size
from optimizer.spec import PerfData

QUEUE_PER_BATCH = 10  # places to wait per place in service, where no maxQueueSize is given
DEFAULT_QUEUE = np.nan  # as `Workload.max_queue`
MAX_CACHED = 200_000  # distinct parameter sets remembered, some 300 bytes each


@dataclass(frozen=True, slots=True)
class Speeds(Columns):
    """Performance data as columns, an entry per model and accelerator."""

    iterates: FloatArray  # 1 where the parameters are those of IterationModel, 0 of PhaseModel
    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    delta_ms: FloatArray
    max_batch: FloatArray  # for requests of `at_tokens` output tokens
    at_tokens: FloatArray

    @classmethod
    def of(cls, perfs: Iterable[PerfData]) -> "Speeds":
        return cls.from_rows([_speed(perf) for perf in perfs])

    def scaled_batch(self, out_tokens: FloatArray | int) -> FloatArray:
        """Returns the batch sizes for requests of so many output tokens: the reference's rule."""
        return self.max_batch * self.at_tokens // out_tokens


def _speed(perf: PerfData) -> tuple[float, ...]:
    if perf.uses_iterations and perf.perf_parms is not None:
        p = perf.perf_parms
        parameters = (1.0, p.alpha, p.beta, p.gamma, 0.0)
    else:
        d, f = perf.decode_parms, perf.prefill_parms
        parameters = (0.0, d.alpha, d.beta, f.gamma, f.delta)
    return (*parameters, float(perf.max_batch_size), float(perf.at_tokens))


@dataclass(frozen=True, slots=True)
class Workload(Columns):
    """The requests that replicas serve, the limits set for them and their targets."""

    in_tokens: FloatArray
    out_tokens: FloatArray  # at least 1
    max_batch: FloatArray  # 0: the speed's
    max_queue: FloatArray  # DEFAULT_QUEUE: the model's
    ttft_ms: FloatArray  # targets; 0: none
    itl_ms: FloatArray
    tps: FloatArray


@dataclass(frozen=True, slots=True)
class Analysis(Columns):
    """Replicas at their arrival rates."""

    ttft_ms: FloatArray
    itl_ms: FloatArray
    wait_ms: FloatArray
    utilization: FloatArray
    throughput_per_ms: FloatArray
    loss: FloatArray

    @classmethod
    def of(cls, found: Performance) -> "Analysis":
        return cls(
            found.latency.ttft_ms,
            found.latency.itl_ms,
            found.occupancy.wait_ms,
            found.utilization,
            found.throughput_per_ms,
            found.loss,
        )


@dataclass(frozen=True, slots=True)
class ReplicaTable(Columns):
    """The parameters that decide the performance of one replica of each pair."""

    iterates: FloatArray
    alpha_ms: FloatArray
    beta_ms: FloatArray
    gamma_ms: FloatArray
    delta_ms: FloatArray
    in_tokens: FloatArray
    out_tokens: FloatArray
    max_batch: FloatArray
    max_queue: FloatArray
    ttft_ms: FloatArray
    itl_ms: FloatArray
    tps: FloatArray

    @classmethod
    def of(cls, speed: Speeds, work: Workload) -> "ReplicaTable":
        """Joins the two, entry by entry, and fills in the default batch and queue sizes."""
        default_batch = np.maximum(speed.scaled_batch(work.out_tokens), 1)
        batch = np.where(work.max_batch > 0, work.max_batch, default_batch)
        batch = np.minimum(batch, MAX_BATCH)
        default_queue = np.where(speed.iterates > 0, 0.0, QUEUE_PER_BATCH * batch)
        queue = np.where(np.isnan(work.max_queue), default_queue, work.max_queue)
        parameters = (speed.alpha_ms, speed.beta_ms, speed.gamma_ms, speed.delta_ms)
        targets = (work.ttft_ms, work.itl_ms, work.tps)
        return cls(
            speed.iterates, *parameters, work.in_tokens, work.out_tokens, batch, queue, *targets
        )

    def is_valid(self) -> BoolArray:
        """Returns True where service takes time and the system has more than one place."""
        valid = np.zeros(len(self), dtype=np.bool_)
        for rows, replica in self._by_model():
            valid[rows] = replica.model.is_valid() & (replica.max_batch + replica.max_queue > 1)
        return valid

    def analyze(self, rate_per_ms: FloatArray) -> Analysis:
        """Returns the performance of every replica at its own rate. All must be valid."""
        found = Analysis.zeros(len(self))
        for rows, replica in self._by_model():
            found.put(rows, Analysis.of(analyze(replica, rate_per_ms[rows])))
        return found

    def size(self) -> Sizing:
        """Returns the highest rates of every replica. All must be valid."""
        found = Sizing.zeros(len(self))
        for rows, replica in self._by_model():
            targets = Targets(self.ttft_ms[rows], self.itl_ms[rows], self.tps[rows])
            found.put(rows, size(replica, targets))
        return found

    def _by_model(self) -> Iterator[tuple[IntArray, Replica]]:
        """Yields the entries of each latency model and their replicas."""
        for is_iteration in (False, True):
            rows = np.flatnonzero((self.iterates > 0) == is_iteration)
            if rows.size:
                yield rows, self.take(rows)._replica(is_iteration)

    def _replica(self, is_iteration: bool) -> Replica:
        parameters = (self.alpha_ms, self.beta_ms, self.gamma_ms)
        tokens = (self.in_tokens, self.out_tokens)
        model = (
            IterationModel(*parameters, *tokens)
            if is_iteration
            else PhaseModel(*parameters, self.delta_ms, *tokens)
        )
        return Replica(model, self.max_batch.astype(np.int64), self.max_queue.astype(np.int64))


class SizingCache:
    """Sizings by parameters: servers of one model, class and shape of request share theirs, and
    so do successive solves. Any thread: entries are immutable and written whole; two threads
    may at worst compute the same one. Forgets everything when full."""

    def __init__(self) -> None:
        self._rows: dict[bytes, FloatArray] = {}

    def size(self, table: ReplicaTable) -> Sizing:
        """Returns the same as `ReplicaTable.size`, computing only parameter sets not seen
        before."""
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
