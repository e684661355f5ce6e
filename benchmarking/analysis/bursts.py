"""Detects rows whose tokens came in bursts, which hide when the server made them. Pure."""

from collections.abc import Iterable
from itertools import pairwise

from benchmarking.analysis.latency import output_tokens, succeeded
from benchmarking.records import RequestRecord

SAME_READ_S = 0.0002  # events this close count as one network read
MAX_SHARE = 0.8  # beyond it, a read has over five tokens: more than drafts explain


def burst_fault(records: Iterable[RequestRecord]) -> str | None:
    """Returns why the times between a row's tokens are not usable; None if they are.

    They are not if more than MAX_SHARE of the tokens after the first came in the same network read
    as the token before, because those tokens waited somewhere for an unknown time.
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
