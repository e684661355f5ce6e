"""Drafts: tokens tried beyond a row's next one, and which of them the model drew itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from inference_api.core.rows import Draft, UserRow
from inference_api.runner import Drawn, Hidden, RowStep

if TYPE_CHECKING:
    from inference_api.core.plan import PlannedStep

State = TypeVar("State")


class Outcome(NamedTuple):
    """The result of a row's part of a step.

    `drawn` are the row's new tokens: the guesses that were accepted, and one more. `hidden` [hidden
    size], if the source wants it, is the state that drew the last of them.
    """

    row: UserRow
    drawn: Sequence[Drawn]
    hidden: Hidden | None = None


class DraftSource(Protocol):
    """Proposes the next tokens of rows. Decode thread only."""

    name: str

    @property
    def wants_hidden(self) -> bool:
        """Whether `learn` needs the hidden states of the next step."""

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        """Drafts by the index of their row. A row without a draft decodes a single token."""

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Called after each step with every row that decoded, with or without a draft."""


class Drafting(DraftSource, Protocol):
    """The one that the rows of a model ask, whoever it asks itself."""

    def took(self, step: "PlannedStep", model_s: float, loop_s: float) -> None:
        """How long a turn took, inside the model and outside."""


class RowStates(Generic[State]):
    """A draft source's state for each row, kept while its request decodes."""

    def __init__(self, start: Callable[[UserRow], State]) -> None:
        self._start = start
        self._held: dict[int, tuple[UserRow, State]] = {}  # keyed by row index

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
    """The part of a step that the row accepts."""

    tokens: Sequence[int]  # indices into the step's, for `ModelRunner.keep`
    drawn: Sequence[Drawn]  # along that branch: the drafted tokens that were drawn, then one more


def accepted(step: RowStep, drawn: Sequence[Drawn]) -> Accepted:
    """The branch in which every token is the one that the token before it drew.

    A draw depends only on its own branch and position, so this is the text of single steps.
    """
    first = step.num_undrawn
    tokens, along = [*range(first + 1)], [drawn[0]]
    for token in range(first + 1, len(step.token_ids)):
        parent = token - 1 if step.parents is None else step.parents[token]
        if parent == tokens[-1] and step.token_ids[token] == along[-1].token_id:
            tokens.append(token)
            along.append(drawn[token - first])
    return Accepted(tokens, along)
