"""What `bench-bundle` computes of its measurements. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple, Self

from lab.benches.bundle.client import Reply, Span

MIB = 2**20


class Spread(NamedTuple):
    """Of values in seconds; `num`: how many there are."""

    median_s: float
    p95_s: float
    p99_s: float
    max_s: float
    num: int

    @classmethod
    def of(cls, values_s: Sequence[float]) -> Self | None:
        """Returns None of no values."""
        if not values_s:
            return None
        cuts = quantiles(values_s, n=100, method="inclusive") if len(values_s) > 1 else []
        p95_s, p99_s = (cuts[94], cuts[98]) if cuts else (values_s[0], values_s[0])
        return cls(median(values_s), p95_s, p99_s, max(values_s), len(values_s))


def room_bytes(needs: Sequence[int], num: int) -> int:
    """A limit under which any `num` of those that need so many bytes are there together and, where
    their sizes allow it, no more: what is left is for the caches of more rows."""
    largest = sorted(needs, reverse=True)[:num]
    if num >= len(needs):
        return 2 * sum(largest)
    one_more = sorted(needs)[: num + 1]
    return max(sum(largest), sum(one_more) - 1)


def slope_per_100(values: Sequence[float]) -> float:
    """What a value gains in 100 steps, by least squares. Raises ValueError for fewer than two."""
    count = len(values)
    if count < 2:
        raise ValueError(f"a slope takes two values, not {count}")
    mean_x, mean_y = (count - 1) / 2, sum(values) / count
    above = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values))
    return 100 * above / sum((x - mean_x) ** 2 for x in range(count))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.begin_s <= found[-1].end_s:
            found[-1] = Span(found[-1].begin_s, max(span.end_s, found[-1].end_s))
        else:
            found.append(span)
    return found


def touches(gap: Span, spans: Sequence[Span]) -> bool:
    """Whether it has any time in common with one of `spans`, which are merged."""
    at = bisect_left(spans, gap.end_s, key=lambda span: span.begin_s)
    return at > 0 and spans[at - 1].end_s > gap.begin_s


def spread_of_gaps(gaps: Iterable[Span]) -> Spread | None:
    return Spread.of([gap.end_s - gap.begin_s for gap in gaps])


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What one expert, or all of them, answered under a load of `duration_s`."""

    name: str
    num_requests: int
    num_errors: int
    num_wrong: int  # by another expert, or another text than it gives alone
    goodput_per_s: float  # right answers with a first token in time
    tokens_per_s: float
    num_paid: int
    paid: Spread | None  # times to first token of those that waited for a load
    unpaid: Spread | None

    @property
    def max_wait_s(self) -> float:
        """The longest time to a first token."""
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
    """From the first that was due to the end of the last."""
    return max(reply.ended_s for reply in replies) - min(reply.due_s for reply in replies)
