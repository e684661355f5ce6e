"""Points to fit: latencies with the number of requests that were in service at the time.

Each row is one point, with means over its requests, because the model describes means: times to
first token are skewed, and most lie below their mean. Concurrency is the number of requests in
service when a request came, as in the optimizer, where mean latencies follow from it by Little's
law. A line through such points predicts the latencies of similar loads even for a server that
differs from the model. Parts of a row would not do, because the requests of a part were not served
together with those that they met when they came. Pure: any thread.
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

BEYOND_PLACES = 1.5  # requests in flight per place that prove that there are no more places


@dataclass(frozen=True, slots=True)
class Places:
    """The number of requests that a server serves at once. `source` is given, server or rows."""

    count: int
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """Means over one row. `concurrency` is the number in service when a request came, itself
    included. `prefill_concurrency` and `ttft_ms` leave out requests that had to queue.
    `rate_per_s` is the rate at which requests came due."""

    row: int
    input_tokens: float
    output_tokens: float
    concurrency: float
    itl_ms: float
    prefill_concurrency: float | None
    ttft_ms: float | None
    rate_per_s: float


def fit_points(run: Run, max_batch: int | None) -> list[Point]:
    """Returns the points of all rows of `run`, except those whose tokens came in bursts. At most
    `max_batch` of the requests in flight count as in service."""
    points = []
    for row in range(len(run.rows)):
        records = run.all_of(row)
        in_flight = InFlight(records)
        usable = [r for r in succeeded(run.records_of(row)) if itl_s(r) and input_tokens(r)]
        if usable and not burst_fault(usable):
            rate_per_s = load_point(run.rows[row], records).offered_per_s
            points.append(_point(row, usable, in_flight, max_batch or in_flight.max(), rate_per_s))
    return points


def places_of(run: Run, max_batch_size: int | None = None) -> Places | None:
    """Returns `max_batch_size`, else the rows that the server reports, else what was measured."""
    if max_batch_size is not None:
        return Places(max_batch_size, "given")
    if run.environment.user_rows is not None:
        return Places(run.environment.user_rows, "server")
    limit = batch_limit(run)
    return None if limit is None else Places(limit, "rows")


def batch_limit(run: Run) -> int | None:
    """Returns the server's places as seen from outside: the most answers that were ever under way
    at once, if far more requests were in flight, so that the others must have waited.

    It is too low if prompts always take some places. None if the load was never far above the
    number of requests that the server took at once.
    """
    row_records = [run.all_of(row) for row in range(len(run.rows))]
    places = max(map(max_decoding, row_records), default=0)
    in_flight = max((InFlight(records).max() for records in row_records), default=0)
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
