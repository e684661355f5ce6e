"""Points to fit: latencies beside the number of requests that were served at the time.

Each row is one point, the means over its requests. The model describes means: times to first token
are skewed, so that the bulk of single requests lies below their mean. And concurrency is what
requests met when they came, as in the optimizer, where mean latencies follow from it by Little's
law: a line through points of this kind gives a load like that of a point its latencies, even where
a server is not what the model assumes. Over a part of a row that does not hold, because the
requests of that part were served beside others than they met. Pure: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from benchmarking.analysis.bursts import burst_fault
from benchmarking.analysis.curve import load_point
from benchmarking.analysis.in_flight import InFlight, max_decoding
from benchmarking.analysis.latency import TTFT, input_tokens, itl_s, output_tokens, succeeded
from benchmarking.records import RequestRecord, Run

BEYOND_PLACES = 1.5  # requests in flight for each place that show that there are no more


@dataclass(frozen=True, slots=True)
class Places:
    """Number of requests served at once, and its source: given, server or rows."""

    count: int
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """Means over one row. Concurrency is in service when a request came, itself included.
    `prefill_concurrency` and `ttft_ms` leave out who had to queue. `rate_per_s`: as they came
    due."""

    row: int
    input_tokens: float
    output_tokens: float
    concurrency: float
    itl_ms: float
    prefill_concurrency: float | None
    ttft_ms: float | None
    rate_per_s: float


def fit_points(run: Run, max_batch: int | None) -> list[Point]:
    """Returns the points of all rows of `run` but those whose tokens came in bursts. With
    `max_batch` places, more in flight are not in service."""
    points = []
    for row in range(len(run.rows)):
        records = run.all_of(row)
        in_flight = InFlight(records)
        usable = [r for r in succeeded(run.records_of(row)) if itl_s(r) and input_tokens(r)]
        if usable and not burst_fault(usable):
            rate_per_s = load_point(run.rows[row], records).offered_per_s
            points.append(_point(row, usable, in_flight, max_batch or in_flight.max(), rate_per_s))
    return points


def places_of(run: Run, given: int | None = None) -> Places | None:
    """Returns `given`, or else the user rows the server reports, or else what the rows show."""
    if given is not None:
        return Places(given, "given")
    if run.environment.user_rows is not None:
        return Places(run.environment.user_rows, "server")
    seen = batch_limit(run)
    return None if seen is None else Places(seen, "rows")


def batch_limit(run: Run) -> int | None:
    """Returns the server's places as seen from outside: the most answers ever under way at once,
    if so many more requests were in flight that the others must have waited.

    Too few where some places are always taken by prompts. None while the load never went far
    enough beyond what the server took at once.
    """
    of_rows = [run.all_of(row) for row in range(len(run.rows))]
    places = max(map(max_decoding, of_rows), default=0)
    in_flight = max((InFlight(records).max() for records in of_rows), default=0)
    return places if places and in_flight >= BEYOND_PLACES * places else None


def _point(
    row: int,
    usable: Sequence[RequestRecord],
    in_flight: InFlight,
    max_batch: int,
    rate_per_s: float,
) -> Point:
    met = in_flight.at([record.sent_s for record in usable])
    admitted = [
        (record, beside) for record, beside in zip(usable, met, strict=True) if beside <= max_batch
    ]
    ttfts_ms = TTFT.values(record for record, _ in admitted)
    return Point(
        row=row,
        input_tokens=fmean(float(input_tokens(record) or 0) for record in usable),
        output_tokens=fmean(output_tokens(record) for record in usable),
        concurrency=float(np.minimum(met, max_batch).mean()),
        itl_ms=fmean(1000 * (itl_s(record) or 0.0) for record in usable),
        prefill_concurrency=fmean(beside for _, beside in admitted) if admitted else None,
        ttft_ms=fmean(ttfts_ms) if admitted else None,
        rate_per_s=rate_per_s,
    )
