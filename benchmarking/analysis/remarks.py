"""Sentences for terminal and report: remarks on what the figures of a row do not show, and the
verdict on a run, which is the load up to which it met its service levels. Pure: any thread.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.in_flight import InFlight
from benchmarking.analysis.latency import hidden_tokens, output_tokens, succeeded
from benchmarking.records import INTERRUPTED, RequestRecord

ATTAINMENT = 0.95  # a load meets the levels if at least this share of requests does


def remarks(records: Sequence[RequestRecord]) -> Iterator[str]:
    """Yields remarks on a row. `records` are all of its records, including the warm-up."""
    measured = [record for record in records if record.is_measured]
    for code, (count, message) in failures(measured).items():
        yield f"{count} failed with {code}: {message}"
    answered = succeeded(records)
    if num_waits := sum(record.num_waits for record in records):
        most = InFlight(answered).max()
        yield (
            f"the server had requests wait {num_waits} times (429 with Retry-After): limited to "
            f"about {most} at a time"
        )
    if hidden := sum(map(hidden_tokens, answered)):
        counted = hidden + sum(map(output_tokens, answered))
        yield (
            f"{hidden} of the {counted} tokens that the server counts were not sent, such as "
            "hidden thoughts: the figures are of those that came"
        )


def nothing_answered(records: Sequence[RequestRecord]) -> str:
    """Returns why there are no figures; empty if a request completed, or none has ended."""
    ended = [r for r in records if r.error is None or r.error.code != INTERRUPTED]
    if succeeded(ended) or not ended:
        return ""
    parts = [
        f"{count} of {len(ended)} failed with {code}: {message}"
        for code, (count, message) in failures(ended).items()
    ]
    return f"nothing was answered: {'; '.join(parts)}"


def failures(records: Sequence[RequestRecord]) -> dict[str, tuple[int, str]]:
    """Returns for each code the number of failures and the first message, in the order of codes."""
    failed = [failure for record in records if (failure := record.failure) is not None]
    counts = Counter(failure.code for failure in failed)
    first = {failure.code: failure.message for failure in reversed(failed)}
    return {code: (counts[code], first[code]) for code in sorted(counts)}


def verdict(points: Sequence[LoadPoint], slo: Slo) -> str:
    """Returns the verdict as one sentence; empty if nothing was measured or no service level was
    given. If nothing was answered, it says why. It judges only open loops, if there are any, and
    names loads by their offered rate."""
    if why := nothing_answered([record for point in points for record in point.all_records]):
        return f"{why[0].upper()}{why[1:]}"
    if slo == Slo():
        return ""
    rated = [point for point in points if point.load.qps is not None] or list(points)
    rated.sort(key=lambda point: point.offered_per_s)
    kept = list(takewhile(lambda point: point.goodput(slo).attainment >= ATTAINMENT, rated))
    missed = rated[len(kept) :]
    levels = f"{slo} for {ATTAINMENT:.0%} of requests"
    if not kept:
        return f"Misses {levels} at {_rate(missed[0])}, the lowest load." if missed else ""
    if not missed:
        return f"Meets {levels} at every load, up to {_rate(kept[-1])}."
    return f"Meets {levels} up to {_rate(kept[-1])}; misses them at {_rate(missed[0])}."


def _rate(point: LoadPoint) -> str:
    return f"{point.offered_per_s:.3g} requests/s"
