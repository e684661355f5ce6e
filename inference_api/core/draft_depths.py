"""Counts drafts by tried and by accepted depth. Every figure about drafts derives from these."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class DraftDepths:
    """Counts of drafts by their depth, and by how many of their levels were accepted.

    A draft's depth is its number of levels: the guessed tokens of a chain, or the longest path of a
    tree. One thread owns the counts and gives copies to others.
    """

    tried: list[int] = field(default_factory=list)  # entry k: drafts with k levels
    right: list[int] = field(default_factory=list)  # entry k: drafts with k levels accepted

    def add(self, drafted_tokens: int, accepted_tokens: int) -> None:
        """Count one verified draft; 0 <= `accepted_tokens` <= `drafted_tokens`."""
        if missing := max(0, drafted_tokens + 1 - len(self.tried)):
            self.tried += [0] * missing
            self.right += [0] * missing
        self.tried[drafted_tokens] += 1
        self.right[accepted_tokens] += 1

    def copy(self) -> "DraftDepths":
        return DraftDepths([*self.tried], [*self.right])

    @property
    def drafted_by_depth(self) -> list[int]:
        """Returns how many drafts had at least 1, 2, ... levels."""
        return _at_least(self.tried)

    @property
    def accepted_by_depth(self) -> list[int]:
        """Returns how many drafts had at least 1, 2, ... levels accepted. The list is as long as
        `drafted_by_depth`."""
        return _at_least(self.right)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Returns for each depth the accepted share of the drafts that were at least as deep. The
        list is empty if nothing was drafted."""
        pairs = zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted_by_depth)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_by_depth)


def _at_least(counts: Sequence[int]) -> list[int]:
    """Returns the sums of `counts[1:]`, `counts[2:]`, ..."""
    return [*accumulate(reversed(counts[1:]))][::-1]
