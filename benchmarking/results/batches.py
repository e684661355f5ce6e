"""Batch sizes of a row: those the server reports, and the documented estimate. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarking.analysis.switching import batch_of, group_by_ttft
from benchmarking.results.responses import Response


@dataclass(frozen=True, slots=True)
class Batches:
    """`frequencies`: requests by batch size."""

    frequencies: dict[int, int]

    @property
    def representative(self) -> int | None:
        """Returns the size with over half of the weight, requests times size; None if none has."""
        total = sum(size * count for size, count in self.frequencies.items())
        heavy = [size for size, n in self.frequencies.items() if 2 * size * n > total]
        return heavy[0] if heavy else None


def batch_columns(responses: Sequence[Response]) -> dict[str, Any]:
    """Returns the workbook's columns for one row's responses, in the order they ended.

    The estimate takes neighbours with the very same server TTFT for a group, and the next power of
    two for its batch: it sees no batch in a server whose members have TTFTs of their own. Where
    the server says `batch_size_used`, that is shown and the estimate stands beside it.
    """
    succeeded = [response for response in responses if not response.get("error_code")]
    ttfts_s = [response.get("server_ttft_s") for response in succeeded]
    known_s = [ttft_s for ttft_s in ttfts_s if ttft_s is not None]
    sizes = [size for _, size in group_by_ttft(known_s)]
    estimated = Batches(_counted((batch_of(size), size) for size in sizes))
    said = [response.get("batch_size_used") for response in succeeded]
    is_said = bool(said) and None not in said
    shown = Batches(_counted((size, 1) for size in said)) if is_said else estimated
    return {
        "requests_grouping": sizes,
        "requests_batching": [batch_of(size) for size in sizes],
        "request_batching_frequencies": shown.frequencies,
        "representative_batch_size": shown.representative,
        "estimated_request_batching_frequencies": estimated.frequencies,
        "estimated_representative_batch_size": estimated.representative,
    }


def _counted(sizes: Any) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for size, requests in sizes:
        counts[size] += requests
    return dict(sorted(counts.items()))
