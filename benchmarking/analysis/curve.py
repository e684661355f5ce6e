"""One point of a load curve: what a row offered, and what was measured. Pure: any thread."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarking.analysis.bursts import burst_fault
from benchmarking.analysis.goodput import Goodput, Slo, goodput
from benchmarking.analysis.in_flight import InFlight
from benchmarking.analysis.intervals import Interval, mean_within_run
from benchmarking.analysis.latency import E2E, ITL, TTFT, Metric, output_tokens, succeeded
from benchmarking.records import RequestRecord, RowRecord, Run, Workload

PERCENTS = (5, 25, 50, 75, 90, 95, 99)
LEAST_S = 1e-6  # least length of a row


@dataclass(frozen=True, slots=True)
class Spread:
    """A latency over a row's completed requests, in ms: the mean, and percentiles of PERCENTS."""

    mean: Interval
    percentiles: tuple[float, ...]

    def percentile(self, percent: int) -> float:
        return self.percentiles[PERCENTS.index(percent)]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A row's figures. Rates are of the time in which the load was held, without ramp and drain.

    A latency is None if no request has it; ITL also if tokens came in bursts. `measured` has the
    requests without the warm-up, in the order of their schedule. See `ClientOverhead.stolen_share`.
    """

    load: Workload
    measured: tuple[RequestRecord, ...]
    from_s: float
    to_s: float
    offered_per_s: float  # requests that came due
    throughput_per_s: float  # requests answered
    tokens_per_s: float  # output tokens that came
    in_flight: float  # mean number of requests
    error_share: float
    ttft: Spread | None
    itl: Spread | None
    e2e: Spread | None
    stolen_share: float | None
    burst_fault: str | None = None  # why there is no ITL although tokens came
    all_records: tuple[RequestRecord, ...] = ()  # with the warm-up

    def goodput(self, slo: Slo) -> Goodput:
        """Returns the goodput of the requests that came due while the load was held."""
        due = [r for r in self.measured if self.from_s <= r.scheduled_s < self.to_s]
        return goodput(due or self.measured, slo, self.to_s - self.from_s)

    def tokens_per_slice(self, slices: int) -> list[float]:
        """Returns the output tokens that came in each of `slices` equal parts of that time."""
        bounds_s = np.linspace(self.from_s, self.to_s, slices + 1)
        tokens = np.zeros(slices)
        for record in succeeded(self.measured):
            events, _ = np.histogram(record.chunk_s, bounds_s)
            tokens += events * output_tokens(record) / len(record.chunk_s)
        return [float(value) for value in tokens]


def load_points(run: Run) -> list[LoadPoint]:
    """Returns a point for each row with a measured request."""
    return list(load_points_by_row(run).values())


def load_points_by_row(run: Run) -> dict[int, LoadPoint]:
    """Returns the points by the rows' numbers."""
    points = {}
    for row, row_record in enumerate(run.rows):
        records = run.all_of(row)
        if any(record.is_measured for record in records):
            points[row] = load_point(row_record, records)
    return points


def load_point(row: RowRecord, records: Sequence[RequestRecord]) -> LoadPoint:
    """Returns a row's point. `records` are all of its records, at least one of them measured."""
    measured = sorted(
        (record for record in records if record.is_measured), key=lambda record: record.index
    )
    from_s, to_s = steady_window(row, measured)
    duration_s = to_s - from_s
    due = sum(from_s <= record.scheduled_s < to_s for record in records)
    answered = succeeded(records)
    fault = burst_fault(measured)
    ended = sum(from_s <= record.chunk_s[-1] < to_s for record in answered)
    return LoadPoint(
        load=row.load,
        measured=tuple(measured),
        from_s=from_s,
        to_s=to_s,
        offered_per_s=due / duration_s,
        throughput_per_s=ended / duration_s,
        tokens_per_s=sum(_tokens_within(r, from_s, to_s) for r in answered) / duration_s,
        in_flight=InFlight(records).mean(from_s, to_s),
        error_share=1 - len(succeeded(measured)) / len(measured),
        ttft=spread(TTFT, measured),
        itl=None if fault else spread(ITL, measured),
        e2e=spread(E2E, measured),
        stolen_share=row.overhead.stolen_share if row.overhead else None,
        burst_fault=fault,
        all_records=tuple(records),
    )


def steady_window(row: RowRecord, measured: Sequence[RequestRecord]) -> tuple[float, float]:
    """Returns start and end in seconds: from the first measured request until the last one is due.
    If that is less than half of the row, as when all are due at once, the whole row counts."""
    end_s = max(row.end_s, row.start_s + LEAST_S)
    last_due_s = max((record.scheduled_s for record in measured), default=end_s)
    if last_due_s - row.start_s < (end_s - row.start_s) / 2:
        return row.start_s, end_s
    return row.start_s, last_due_s


def spread(metric: Metric, records: Sequence[RequestRecord]) -> Spread | None:
    """Returns the spread of a latency. `records` must be in the order of their schedule."""
    values = metric.values(records)
    if not values:
        return None
    percentiles = tuple(float(value) for value in np.percentile(values, PERCENTS))
    return Spread(mean_within_run(values), percentiles)


def _tokens_within(record: RequestRecord, from_s: float, to_s: float) -> float:
    """Returns the tokens within a time, if every event has an equal share of the tokens."""
    events = bisect_left(record.chunk_s, to_s) - bisect_left(record.chunk_s, from_s)
    return output_tokens(record) * events / len(record.chunk_s)
