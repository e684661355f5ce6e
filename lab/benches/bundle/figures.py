"""Computes the figures of `bench-bundle` from its measurements. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple, Self

from lab.benches.bundle.client import Reply, Span

MIB = 2**20


class Spread(NamedTuple):
    """Quantiles of `num` values in seconds."""

    median_s: float
    p95_s: float
    p99_s: float
    max_s: float
    num: int

    @classmethod
    def of(cls, values_s: Sequence[float]) -> Self | None:
        """Returns the spread of values; None if there are none."""
        if not values_s:
            return None
        cuts = quantiles(values_s, n=100, method="inclusive") if len(values_s) > 1 else []
        p95_s, p99_s = (cuts[94], cuts[98]) if cuts else (values_s[0], values_s[0])
        return cls(median(values_s), p95_s, p99_s, max(values_s), len(values_s))


def room_bytes(needs: Sequence[int], num: int) -> int:
    """Returns a limit in bytes under which any `num` of the experts, which need `needs` bytes, fit
    together and, if sizes allow it, no more. Memory that is left is for caches of more rows."""
    largest = sorted(needs, reverse=True)[:num]
    if num >= len(needs):
        return 2 * sum(largest)
    one_more = sorted(needs)[: num + 1]
    return max(sum(largest), sum(one_more) - 1)


def slope_per_100(values: Sequence[float]) -> float:
    """Returns the growth in 100 steps, by least squares. Raises ValueError for under two values."""
    count = len(values)
    if count < 2:
        raise ValueError(f"a slope takes two values, not {count}")
    mean_x, mean_y = (count - 1) / 2, sum(values) / count
    above = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values))
    return 100 * above / sum((x - mean_x) ** 2 for x in range(count))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Returns the same time as spans without overlaps, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.begin_s <= found[-1].end_s:
            found[-1] = Span(found[-1].begin_s, max(span.end_s, found[-1].end_s))
        else:
            found.append(span)
    return found


def touches(gap: Span, spans: Sequence[Span]) -> bool:
    """Returns whether a gap overlaps any of `spans`, which must be merged."""
    at = bisect_left(spans, gap.end_s, key=lambda span: span.begin_s)
    return at > 0 and spans[at - 1].end_s > gap.begin_s


def spread_of_gaps(gaps: Iterable[Span]) -> Spread | None:
    return Spread.of([gap.end_s - gap.begin_s for gap in gaps])


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The answers of one expert, or of all, under a load."""

    name: str
    num_requests: int
    num_errors: int
    num_wrong: int  # from another expert, or other text than the expert gives alone
    goodput_per_s: float  # right answers with a first token in time
    tokens_per_s: float
    num_paid: int
    paid: Spread | None  # TTFT of requests that waited for a load
    unpaid: Spread | None

    @property
    def max_wait_s(self) -> float:
        """Returns the longest TTFT."""
        return max(each.max_s for each in (self.paid, self.unpaid) if each is not None)


def load_of(
    name: str,
    replies: Sequence[Reply],
    is_right: Sequence[bool],
    duration_s: float,
    max_ttft_s: float,
) -> ExpertLoad:
    answered = [reply for reply in replies if not reply.error]
    good = [
        right and reply.ttft_s <= max_ttft_s for right, reply in zip(is_right, replies, strict=True)
    ]
    return ExpertLoad(
        name,
        len(replies),
        len(replies) - len(answered),
        sum(not right for right in is_right) - (len(replies) - len(answered)),
        sum(good) / duration_s,
        sum(reply.num_tokens for reply in answered) / duration_s,
        sum(reply.is_paid for reply in answered),
        Spread.of([reply.ttft_s for reply in answered if reply.is_paid]),
        Spread.of([reply.ttft_s for reply in answered if not reply.is_paid]),
    )


def duration_s(replies: Sequence[Reply]) -> float:
    """Returns the seconds from the first due time to the last end."""
    return max(reply.ended_s for reply in replies) - min(reply.due_s for reply in replies)
