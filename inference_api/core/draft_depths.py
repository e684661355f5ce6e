"""How deep drafts were tried and how deep they were right: all figures of drafts follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class DraftDepths:
    """Drafts counted by their depth and by how many of their levels were accepted.

    A draft's depth is what it tried beyond the certain token: the tokens of a chain, the levels of
    a tree. Of one thread, which hands copies to others.
    """

    tried: list[int] = field(default_factory=list)  # entry k: the drafts of k levels
    right: list[int] = field(default_factory=list)  # entry k: those of which k were accepted

    def add(self, drafted_tokens: int, accepted_tokens: int) -> None:
        """One draft, verified; 0 <= `accepted_tokens` <= `drafted_tokens`."""
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
        """Returns how many drafts had at least 1, 2, ... levels accepted; as long as the above."""
        return _at_least(self.right)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Returns the shares of the drafts that were as deep; empty where nothing was drafted."""
        pairs = zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted_by_depth)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_by_depth)


def _at_least(counts: Sequence[int]) -> list[int]:
    """Returns the sums of all entries from 1, 2, ... on."""
    return [*accumulate(reversed(counts[1:]))][::-1]
