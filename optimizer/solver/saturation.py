"""Best effort: gives servers that did not fit fewer replicas than they need. Pure: any thread.

Each policy distributes the cards that are left; see `SaturationPolicy`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from optimizer.solver import Candidate, Contender, SolverChoice
from optimizer.spec import SaturationPolicy


class Stock:
    """The cards that are left, by type. Owned by one solve."""

    def __init__(self, cards: Mapping[str, int], taken: Iterable[SolverChoice] = ()) -> None:
        """Starts with `cards` minus the cards of the choices in `taken`."""
        self._cards = dict(cards)
        for choice in taken:
            self.take(choice.candidate, choice.replicas)

    @property
    def cards(self) -> Mapping[str, int]:
        """Returns the cards left, by type."""
        return self._cards

    @property
    def is_overdrawn(self) -> bool:
        return any(left < 0 for left in self._cards.values())

    def fits(self, candidate: Candidate, replicas: int) -> bool:
        return replicas * candidate.cards_per_replica <= self._cards.get(candidate.card_type, 0)

    def most_replicas(self, candidate: Candidate) -> int:
        """Returns how many replicas fit into the cards left, at most the candidate's."""
        if candidate.cards_per_replica == 0:
            return candidate.replicas
        left = self._cards.get(candidate.card_type, 0) // candidate.cards_per_replica
        return max(min(left, candidate.replicas), 0)

    def take(self, candidate: Candidate, replicas: int) -> None:
        """Take the cards of replicas; give them back if `replicas` is negative."""
        if cards := replicas * candidate.cards_per_replica:
            self._cards[candidate.card_type] = self._cards.get(candidate.card_type, 0) - cards


def best_effort(
    policy: SaturationPolicy, leftovers: Iterable[Contender], stock: Stock
) -> dict[str, SolverChoice]:
    """Distribute the cards left in `stock` to `leftovers`, in order."""
    match policy:
        case SaturationPolicy.NONE:
            return {}
        case SaturationPolicy.PRIORITY_EXHAUSTIVE:
            return dict(_exhaust(leftovers, stock))
        case SaturationPolicy.ROUND_ROBIN:
            return _deal_in_turns(leftovers, stock)
        case SaturationPolicy.PRIORITY_ROUND_ROBIN:
            dealt: dict[str, SolverChoice] = {}
            for _, group in groupby(leftovers, key=lambda contender: contender.priority):
                dealt |= _deal_in_turns(group, stock)
            return dealt


def _exhaust(leftovers: Iterable[Contender], stock: Stock) -> Iterator[tuple[str, SolverChoice]]:
    for contender in leftovers:
        candidate = _first_with_room(contender, stock)
        if candidate is not None:
            replicas = stock.most_replicas(candidate)
            stock.take(candidate, replicas)
            yield contender.server, SolverChoice(candidate, replicas)


def _deal_in_turns(leftovers: Iterable[Contender], stock: Stock) -> dict[str, SolverChoice]:
    """Give one replica to each server in turn. A server keeps the first candidate that had room on
    its first turn, as in the reference, and leaves when there is no room for it or it is complete.
    Turns in which all get a replica are computed at once, so work grows with servers, not with
    replicas."""
    choices: dict[str, SolverChoice] = {}
    playing = list(leftovers)
    while playing:
        if turns := _whole_turns(playing, choices, stock):
            for contender in playing:
                dealt = choices[contender.server]
                stock.take(dealt.candidate, turns)
                choices[contender.server] = dealt._replace(replicas=dealt.replicas + turns)
        stay = []
        for contender in playing:
            choice = choices.get(contender.server)
            candidate = choice.candidate if choice else _first_with_room(contender, stock)
            replicas = choice.replicas if choice else 0
            if candidate is None or replicas == candidate.replicas or not stock.fits(candidate, 1):
                continue
            stock.take(candidate, 1)
            choices[contender.server] = SolverChoice(candidate, replicas + 1)
            stay.append(contender)
        playing = stay
    return choices


def _whole_turns(
    playing: Iterable[Contender], choices: Mapping[str, SolverChoice], stock: Stock
) -> int:
    """Returns the number of turns, from the second on, in which all servers get a replica."""
    cards_per_turn: Counter[str] = Counter()
    turns = []
    for contender in playing:
        choice = choices.get(contender.server)
        if choice is None:
            return 0
        turns.append(choice.candidate.replicas - choice.replicas)
        cards_per_turn[choice.candidate.card_type] += choice.candidate.cards_per_replica
    left = stock.cards
    turns += [left.get(kind, 0) // cards for kind, cards in cards_per_turn.items() if cards]
    return min(turns)


def _first_with_room(contender: Contender, stock: Stock) -> Candidate | None:
    return next((c for c in contender.candidates if stock.most_replicas(c) > 0), None)
