"""Draft sources, which guess tokens after a row's next one, and the acceptance of their guesses."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from inference_api.core.rows import Draft, UserRow
from inference_api.runner import Drawn, Hidden, RowStep

if TYPE_CHECKING:
    from inference_api.core.plan import PlannedStep


class Outcome(NamedTuple):
    """The tokens that a step drew for one row.

    `drawn` has the row's new tokens: the accepted guesses and one token after them. `hidden`
    [hidden size] is the state that drew the last token, if the draft source wants it.
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
        """Returns drafts by row index. A row without a draft decodes a single token."""

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes of all rows that decoded in a step, with or without a draft."""


class Drafting(DraftSource, Protocol):
    """The draft source of a model's rows. It may combine several others."""

    def learn_turn(self, step: "PlannedStep", model_s: float, loop_s: float) -> None:
        """Learn how many seconds a turn took in the model, and in the rest of the loop."""


def accepted_branch(step: RowStep, drawn: Sequence[Drawn]) -> tuple[list[int], list[Drawn]]:
    """Returns the longest branch of a draft on which each guess equals the token drawn before it:
    indices into the step's tokens, and the row's new tokens, with one after the accepted guesses.
    A draw depends only on its branch and position, so the text is the same as without drafts."""
    first = step.num_undrawn
    tokens, along = [*range(first + 1)], [drawn[0]]
    for token in range(first + 1, len(step.token_ids)):
        parent = token - 1 if step.parents is None else step.parents[token]
        if parent == tokens[-1] and step.token_ids[token] == along[-1].token_id:
            tokens.append(token)
            along.append(drawn[token - first])
    return tokens, along
