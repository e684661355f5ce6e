"""What is tried beyond a row's next token, and how much of it the model drew itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from inference_api.engine.runner import Drawn, Hidden, RowStep
from inference_api.scheduling.rows import Draft, UserRow

State = TypeVar("State")


class Outcome(NamedTuple):
    """What became of a row's part of a step.

    `tried` and `accepted` are indices into what the source proposed for the row, ascending.
    `hidden` [hidden size], where the source wants it, is that of the last token that is certain:
    the one whose draw is the row's next token.
    """

    row: UserRow
    tried: Sequence[int]
    accepted: Sequence[int]
    hidden: "Hidden | None" = None


class DraftSource(Protocol):
    """Guesses what rows will say. Decode thread only."""

    name: str

    @property
    def wants_hidden(self) -> bool:
        """Whether `learn` should be told the hidden states of the next step."""

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        """Drafts by the index of their row; a row without one decodes a single token."""

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """After each step: of every row that decoded, with a draft or without."""


class RowStates(Generic[State]):
    """What a draft source knows of each row, as long as its request decodes."""

    def __init__(self, start: Callable[[UserRow], State]) -> None:
        self._start = start
        self._held: dict[int, tuple[UserRow, State]] = {}  # by the index of the row

    def of(self, rows: Sequence[UserRow]) -> list[State]:
        """The states of `rows`, in their order; those of all other requests are dropped."""
        held, self._held = self._held, {}
        for row in rows:
            known = held.get(row.index)
            if known is None or known[0] is not row:
                known = row, self._start(row)
            self._held[row.index] = known
        return [state for _, state in self._held.values()]

    def get(self, row: UserRow) -> State | None:
        """The state of one of the rows that were last asked for."""
        known = self._held.get(row.index)
        return known[1] if known is not None and known[0] is row else None


class Accepted(NamedTuple):
    """What of a step is true of its row."""

    tokens: Sequence[int]  # indices into the step's, for `ModelRunner.keep`
    drawn: Sequence[Drawn]  # along that branch: the drafted tokens that were drawn, then one more


def accepted(step: RowStep, drawn: Sequence[Drawn]) -> Accepted:
    """The branch whose every token is what the token before it drew.

    A draw depends on its own branch and position only, so that this is the text of single steps.
    """
    first = step.num_undrawn
    tokens, along = [*range(first + 1)], [drawn[0]]
    for token in range(first + 1, len(step.token_ids)):
        parent = token - 1 if step.parents is None else step.parents[token]
        if parent == tokens[-1] and step.token_ids[token] == along[-1].token_id:
            tokens.append(token)
            along.append(drawn[token - first])
    return Accepted(tokens, along)
