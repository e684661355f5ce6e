"""Detects rows whose tokens came in bursts, which hide when they were made. Pure."""

from collections.abc import Iterable
from itertools import pairwise

from benchmarking.analysis.latency import output_tokens, succeeded
from benchmarking.records import RequestRecord

SAME_READ_S = 0.0002  # events of one network read share a time; reads at once are as close
MAX_SHARE = 0.8  # more than five tokens a read: no draft is as good, so something holds them back


def burst_fault(records: Iterable[RequestRecord]) -> str | None:
    """Returns why the times between a row's tokens say nothing; None if they are usable.

    They say nothing if more than MAX_SHARE of the tokens after the first came in the same network
    read as the token before: these waited somewhere, and nobody knows how long.
    """
    answered = succeeded(records)
    num_gaps = sum(max(0, output_tokens(record) - 1) for record in answered)
    if not num_gaps:
        return None
    num_timed = sum(
        later - earlier > SAME_READ_S
        for record in answered
        for earlier, later in pairwise(record.chunk_s)
    )
    share = 1 - num_timed / num_gaps
    if share <= MAX_SHARE:
        return None
    num_tokens, num_reads = num_gaps + len(answered), num_timed + len(answered)
    return (
        f"tokens came in bursts, {num_tokens / num_reads:.1f} in one network read on average "
        f"({share:.0%} with the one before): the times between them are not the server's"
    )
