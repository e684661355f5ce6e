"""Chooses the draft sources to ask. Decode thread only."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from inference_api.speculation.paces import Paces

ASKED_SHARE = 0.002  # share of step time that asking a source that does not pay may take
FIRST_ASKED = 16  # rows, or twice, before a source may be found not to pay
RATE = 0.03  # how fast what a source saves is learned


@dataclass(slots=True)
class Payoff:
    """Seconds a step that asking a source saves at about so many rows."""

    saved_s: float = 0.0
    times_asked: int = 0
    ask_s: float = 0.0
    budget_s: float = 0.0  # time that may be lost by asking all the same

    def seems_positive(self, num_rows: int) -> bool:
        return self.saved_s > 0.0 or self.times_asked < max(FIRST_ASKED / num_rows, 2)

    def earn(self, num_turns: int, step_s: float) -> None:
        """So many turns pass without the source, each with a step of so many seconds."""
        self.budget_s += num_turns * ASKED_SHARE * step_s

    def spend(self) -> bool:
        """Returns whether the source is to be asked all the same, which takes the budget."""
        if self.budget_s < self.ask_s:
            return False
        self.budget_s = 0.0
        return True

    def turns_until_asked(self, step_s: float) -> int:
        return max(ceil((self.ask_s - self.budget_s) / (ASKED_SHARE * step_s)), 0)

    def learn(self, saved_s: float, ask_s: float) -> None:
        self.times_asked += 1
        rate = max(RATE, 1 / self.times_asked)
        self.saved_s += rate * (saved_s - ask_s - self.saved_s)
        self.ask_s += rate * (ask_s - self.ask_s)


class Choice(NamedTuple):
    names: Collection[str]  # names of the sources to ask
    is_drafting: bool | None  # for the pace of drafts or, if False, of none; None: for neither
    rest_turns: int = 0  # after the next one, that will have no drafts for sure


class SourceChoice:
    """Which sources to ask at about one number of rows.

    Those that seem to pay are asked while drafts are faster by measured time, or to find out
    whether they are. Each other one is asked now and then, but in no trial of something else.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.payoffs = {name: Payoff() for name in names}
        self.paces = Paces()
        self._rest_turns = 0

    def passes(self) -> bool:
        """Returns whether nothing is to be asked or decided for the next turn, and counts it."""
        if not self._rest_turns:
            return False
        self._rest_turns -= 1
        return True

    def next(self, num_rows: int, step_s: float) -> Choice:
        """For the turn after the next step, which takes so many seconds."""
        if self.passes():
            return Choice((), False)
        paying = [name for name, each in self.payoffs.items() if each.seems_positive(num_rows)]
        losing = {name: each for name, each in self.payoffs.items() if name not in paying}
        is_drafting = bool(paying) and self.paces.take_turn()
        for payoff in losing.values():
            payoff.earn(1, step_s)
        if paying and is_drafting != self.paces.prefers_drafts:  # a trial
            return Choice(paying if is_drafting else (), is_drafting)
        tried = [name for name, payoff in losing.items() if payoff.spend()]
        if is_drafting:
            return Choice([*paying, *tried], True)
        if tried:
            return Choice(tried, None)
        return Choice((), False, self._rest(losing.values(), bool(paying), step_s))

    def _rest(self, losing: Collection[Payoff], has_paying: bool, step_s: float) -> int:
        """Lets the turns pass until some source is to be asked; returns their number."""
        turns = [payoff.turns_until_asked(step_s) for payoff in losing]
        if has_paying:
            turns.append(self.paces.turns_until_trial())
        num_turns = min(turns)
        for payoff in losing:
            payoff.earn(num_turns, step_s)
        if has_paying:
            self.paces.rest(num_turns)
        self._rest_turns = num_turns
        return num_turns
