"""What a fit is made from: latencies beside how many requests were served at the time.

Requests are averaged in blocks of neighbours. The model describes means, and robust regression
over single requests would not find them: times to first token are skewed, so that their bulk lies
below their mean. Pure: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from benchmarking.in_flight import InFlight, max_decoding
from benchmarking.latency import TTFT, input_tokens, itl_s, output_tokens, succeeded
from benchmarking.records import RequestRecord, Run

BLOCK_REQUESTS = 10
BEYOND_PLACES = 1.5  # requests in flight for each place that show that there are no more


@dataclass(frozen=True, slots=True)
class Point:
    """Means over one block of requests. Concurrency counts the request itself.

    `decode_concurrency` is what its tokens met on average, so that a step time linear in the
    number of rows gives a mean ITL linear in it; `prefill_concurrency` what it met when sent.
    The latter and `ttft_ms` leave out who had to queue.
    """

    row: int
    input_tokens: float
    output_tokens: float
    decode_concurrency: float
    itl_ms: float
    prefill_concurrency: float | None
    ttft_ms: float | None


def fit_points(run: Run, max_batch: int | None) -> list[Point]:
    """Blocks of every row of `run`. With `max_batch` places, more in flight are not in service."""
    points = []
    for row in range(len(run.rows)):
        of_row = [record for record in run.records if record.row == row]
        in_flight = InFlight(of_row)
        usable = [r for r in succeeded(run.records_of(row)) if itl_s(r) and input_tokens(r)]
        usable.sort(key=lambda record: record.sent_s)
        blocks = max(1, len(usable) // BLOCK_REQUESTS)
        for chosen in np.array_split(np.arange(len(usable)), blocks):
            if chosen.size:
                block = [usable[i] for i in chosen]
                points.append(_point(row, block, in_flight, max_batch or in_flight.max()))
    return points


def batch_limit(run: Run) -> int | None:
    """The server's places: the most answers that were ever under way at once, if so many more
    requests were in flight that the others must have waited.

    Seen from outside, because a server's own figure, if it has one, is a mean over a request. None
    while the load never went far enough beyond what the server took at once.
    """
    of_rows = [[r for r in run.records if r.row == row] for row in range(len(run.rows))]
    places = max(map(max_decoding, of_rows), default=0)
    in_flight = max((InFlight(records).max() for records in of_rows), default=0)
    return places if places and in_flight >= BEYOND_PLACES * places else None


def _point(row: int, block: Sequence[RequestRecord], in_flight: InFlight, max_batch: int) -> Point:
    met = in_flight.just_before([record.sent_s for record in block]) + 1
    admitted = [
        (record, beside) for record, beside in zip(block, met, strict=True) if beside <= max_batch
    ]
    ttfts_ms = TTFT.values(record for record, _ in admitted)
    return Point(
        row=row,
        input_tokens=fmean(float(input_tokens(record) or 0) for record in block),
        output_tokens=fmean(output_tokens(record) for record in block),
        decode_concurrency=fmean(
            float(np.minimum(in_flight.just_before(record.chunk_s[1:]), max_batch).mean())
            for record in block
        ),
        itl_ms=fmean(1000 * (itl_s(record) or 0.0) for record in block),
        prefill_concurrency=fmean(beside for _, beside in admitted) if admitted else None,
        ttft_ms=fmean(ttfts_ms) if admitted else None,
    )
