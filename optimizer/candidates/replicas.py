"""One replica of each pair: its queue, its maximum rate, its latencies; sized once per parameters.

Pure but for the cache, which any thread may use.
"""

import numpy as np

from optimizer.candidates.eligibility import UNBOUNDED, Eligible, Pairs, PerfTable, perf_row
from optimizer.model.latency import BoolArray, FloatArray, IntArray, IterationModel, PhaseModel
from optimizer.model.queueing import MAX_BATCH, Performance, Replica, analyze
from optimizer.model.sizing import Targets, size
from optimizer.spec import PerfData

QUEUE_PER_BATCH = 10  # places to wait per place in service, where no maxQueueSize is given
MAX_CACHED = 200_000  # distinct parameter sets remembered, some 300 bytes each

_ITERATES, _ALPHA, _BETA, _GAMMA, _DELTA, _IN, _OUT, _BATCH, _QUEUE, _TTFT, _ITL, _TPS = range(12)


class ReplicaTable:
    """The parameters that decide what one replica of each pair can do. Immutable: any thread."""

    def __init__(self, parameters: FloatArray) -> None:
        self.parameters = parameters  # [pairs, 12]

    @classmethod
    def from_pairs(cls, pairs: Pairs, table: PerfTable) -> "ReplicaTable":
        iterates, alpha, beta, gamma, delta, max_batch, at_tokens = table.columns[:, pairs.option]
        derived = np.maximum(max_batch * at_tokens // pairs.out_tokens, 1)
        batch = np.where(pairs.batch_override > 0, pairs.batch_override, derived)
        batch = np.minimum(batch, MAX_BATCH)
        default_queue = np.where(iterates > 0, 0.0, QUEUE_PER_BATCH * batch)
        queue = np.where(pairs.queue_override == UNBOUNDED, default_queue, pairs.queue_override)
        columns = (iterates, alpha, beta, gamma, delta, pairs.in_tokens, pairs.out_tokens)
        bounds = (batch, queue, pairs.ttft_ms, pairs.itl_ms, pairs.tps)
        return cls(np.stack([*columns, *bounds], axis=1))

    @property
    def batch(self) -> IntArray:
        return self.parameters[:, _BATCH].astype(np.int64)

    def is_valid(self) -> BoolArray:
        """Some service takes time, and there is more than one place in the system."""
        valid = np.zeros(len(self.parameters), dtype=np.bool_)
        for rows, replica in self._by_model():
            valid[rows] = replica.model.is_valid() & (replica.max_batch + replica.max_queue > 1)
        return valid

    def analyze(self, rate_per_ms: FloatArray) -> "Analysis":
        """Every pair at its own rate. All rows must be valid."""
        result = Analysis(*(np.empty(rate_per_ms.size) for _ in range(6)))
        for rows, replica in self._by_model():
            result.store(rows, analyze(replica, rate_per_ms[rows]))
        return result

    def size(self) -> FloatArray:
        """Columns of `SizedRows`, one row per pair. All rows must be valid."""
        result = np.empty((len(self.parameters), len(SizedRows.COLUMNS)))
        for rows, replica in self._by_model():
            chosen = self.parameters[rows]
            sizing = size(replica, Targets(chosen[:, _TTFT], chosen[:, _ITL], chosen[:, _TPS]))
            for column, name in enumerate(SizedRows.COLUMNS):
                result[rows, column] = getattr(sizing, name)
        return result

    def _by_model(self) -> list[tuple[IntArray, Replica]]:
        iterates = self.parameters[:, _ITERATES] > 0
        groups = []
        for is_iteration in (False, True):
            rows = np.flatnonzero(iterates == is_iteration)
            if rows.size:
                groups.append((rows, self._replica(rows, is_iteration)))
        return groups

    def _replica(self, rows: IntArray, is_iteration: bool) -> Replica:
        p = self.parameters[rows].T
        model = (
            IterationModel(p[_ALPHA], p[_BETA], p[_GAMMA], p[_IN], p[_OUT])
            if is_iteration
            else PhaseModel(p[_ALPHA], p[_BETA], p[_GAMMA], p[_DELTA], p[_IN], p[_OUT])
        )
        return Replica(model, p[_BATCH].astype(np.int64), p[_QUEUE].astype(np.int64))


def max_batch(perf: PerfData, item: Eligible) -> int:
    """N as `ReplicaTable.from_pairs` has it: the server's, or scaled from `atTokens`."""
    derived = max(perf.max_batch_size * perf.at_tokens // item.out_tokens, 1)
    return min(item.server.max_batch_size or derived, MAX_BATCH)


def replica_row(perf: PerfData, item: Eligible, batch: int) -> list[float]:
    """One row of `ReplicaTable` for a server on an accelerator, its batch already known."""
    queue = item.server.max_queue_size
    if queue is None:
        queue = 0 if perf.uses_iterations else QUEUE_PER_BATCH * batch
    load, target = item.server.current_alloc.load, item.target
    return [
        *perf_row(perf)[:5],
        float(load.avg_in_tokens),
        float(item.out_tokens),
        float(batch),
        float(queue),
        target.slo_ttft,
        target.slo_itl,
        target.slo_tps,
    ]


class Analysis:
    """What `ReplicaTable.analyze` found, one entry per pair. Filled once, then read-only."""

    def __init__(self, *columns: FloatArray) -> None:
        self.ttft_ms, self.itl_ms, self.wait_ms, self.utilization, self.throughput, self.loss = (
            columns
        )

    def store(self, rows: IntArray, found: Performance) -> None:
        self.ttft_ms[rows] = found.latency.ttft_ms
        self.itl_ms[rows] = found.latency.itl_ms
        self.wait_ms[rows] = found.occupancy.wait_ms
        self.utilization[rows] = found.utilization
        self.throughput[rows] = found.throughput_per_ms
        self.loss[rows] = found.loss


class SizedRows:
    """Names for the columns of `ReplicaTable.size`, which are those of `sizing.Sizing`."""

    COLUMNS = (
        "feasible",
        "rate_per_ms",
        "throughput_per_ms",
        "rate_for_ttft",
        "rate_for_itl",
        "rate_for_tps",
        "best_ttft_ms",
        "best_itl_ms",
    )
    FEASIBLE, RATE, THROUGHPUT, FOR_TTFT, FOR_ITL, FOR_TPS, BEST_TTFT, BEST_ITL = range(8)


class SizingCache:
    """Sizings by parameters: servers of one model, class and shape of request share theirs, and
    so do successive solves. Any thread: entries are immutable and written whole; two threads
    may at worst compute the same one. Forgets everything when full."""

    def __init__(self) -> None:
        self._rows: dict[bytes, FloatArray] = {}

    def size(self, table: ReplicaTable) -> FloatArray:
        """As `ReplicaTable.size`, computing only parameter sets not seen before."""
        parameters = np.ascontiguousarray(table.parameters)
        if not len(parameters):
            return np.empty((0, len(SizedRows.COLUMNS)))
        keys = parameters.view(f"V{parameters.strides[0]}").ravel().tolist()
        rows = self._rows
        first_by_key = {key: row for row, key in enumerate(keys) if key not in rows}
        if first_by_key:
            new = ReplicaTable(parameters[list(first_by_key.values())]).size()
            if len(rows) + len(first_by_key) > MAX_CACHED:
                rows = self._rows = {key: rows[key] for key in keys if key in rows}
            rows.update(zip(first_by_key, new, strict=True))
        return np.array([rows[key] for key in keys])
