"""Improves a plan by moving one server, and others that make room for it. Owned by one search.

A server tries every candidate better than its own, in the order of value, cost and name. It gets
one if there are cards, or if other servers make room and lose less than it gains. A server without
a candidate counts as more than all values together, and more for a higher priority. A server is
therefore served whenever possible, and never at the expense of one with a higher priority.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum, inf

from optimizer.solver import Candidate, Contender, SolverChoice

ROUNDS = 5  # passes over all servers
MOST_MOVES = 4  # moves of other servers to make room for one

PRIORITY_STEP = 4.0  # factor by which a higher priority counts more than the next


class Assignment:
    """The index of each contender's candidate; the number of its candidates if it is left out."""

    def __init__(
        self, contenders: Sequence[Contender], cards: Mapping[str, int], taken: list[int]
    ) -> None:
        self._contenders, self._taken = contenders, taken
        self._options = [contender.candidates for contender in contenders]
        self._left = defaultdict(int, cards)
        self._holders: dict[str, set[int]] = defaultdict(set)
        for server, (options, index) in enumerate(zip(self._options, taken, strict=True)):
            if index < len(options):
                self._hold(server, options[index])
        self._outside = _outside(contenders)
        self._looks = 0

    @property
    def left_out(self) -> list[int]:
        """Returns the priorities of servers left out, the highest first."""
        pairs = zip(self._contenders, self._taken, strict=True)
        return sorted(c.priority for c, index in pairs if index == len(c.candidates))

    @property
    def worth(self) -> tuple[tuple[int, ...], float]:
        """Returns a sort key, better plans first: by the number of servers left out of the highest
        priority, then of the next, and so on; last by total value."""
        taken = zip(self._options, self._taken, strict=True)
        values = [options[index].value for options, index in taken if index < len(options)]
        return tuple(-priority for priority in self.left_out), fsum(values)

    def choices(self) -> dict[str, SolverChoice]:
        choices = {}
        for server, contender in enumerate(self._contenders):
            if candidate := self._current_candidate(server):
                choices[contender.server] = SolverChoice(candidate, candidate.replicas)
        return choices

    def improve(self, looks: int) -> int:
        """Improve the plan, looking at most at `looks` servers that might make room. Returns the
        looks that are left."""
        self._looks = looks
        for _ in range(ROUNDS):
            wishing = [i for i, index in enumerate(self._taken) if index]
            wishing.sort(key=lambda i: self._options[i][0].value - self._value(i))
            if not sum([self._grant(server) for server in wishing]):
                break
        return self._looks

    def _grant(self, server: int) -> bool:
        """Give a server the first better candidate it can have. Returns False if there is none."""
        current = self._current_candidate(server)
        current_type, current_cards = (
            ("", 0) if current is None else (current.card_type, _cards(current))
        )
        for index, wish in enumerate(self._options[server][: self._taken[server]]):
            card_type, free = wish.card_type, self._left[wish.card_type]
            num_others = len(self._holders[card_type])
            if current_cards and card_type == current_type:
                free += current_cards
                num_others -= 1
            # `_make_room` would notice only after some moves that there are too few looks.
            if _cards(wish) <= free or (
                0 < num_others <= self._looks and self._make_room(server, wish)
            ):
                self._take(server, index)
                return True
        return False

    def _make_room(self, server: int, wish: Candidate) -> bool:
        """Move other servers until there are cards for a candidate, if they lose less than it
        gains. Returns False, with everything unchanged, if that fails."""
        gain = self._value(server) - wish.value
        moved = [(server, self._taken[server])]
        self._take(server, len(self._options[server]))  # others may take the cards it holds
        while (missing := _cards(wish) - self._left[wish.card_type]) > 0:
            more = MOST_MOVES + 1 - len(moved)
            found = self._cheapest_move(wish.card_type, missing, gain, more == 1) if more else None
            if found is None:
                for other, before in reversed(moved):
                    self._take(other, before)
                return False
            other, index, loss = found
            moved.append((other, self._taken[other]))
            self._take(other, index)
            gain -= loss
        return True

    def _cheapest_move(
        self, card_type: str, missing: int, gain: float, at_once: bool
    ) -> tuple[int, int, float] | None:
        """Returns the server that frees cards at the least loss per card, its new candidate, and
        the loss; None if no loss is below the gain. With `at_once` it must free all missing
        cards."""
        holders = self._holders[card_type]
        if self._looks < len(holders):
            return None
        self._looks -= len(holders)
        found, least = None, inf
        least_freed = missing if at_once else 1
        for other in holders:
            options, taken = self._options[other], self._taken[other]
            now = options[taken]
            most_freed = _cards(now)
            if most_freed < least_freed:
                continue
            for index in range(len(options) + 1):
                is_out = index == len(options)
                loss = (self._outside[other] if is_out else options[index].value) - now.value
                if loss >= gain:
                    break
                freed = most_freed if is_out else self._freed(now, options[index])
                if freed < least_freed or index == taken:
                    continue
                per_card = loss / min(freed, missing)
                if per_card < least:
                    least, found = per_card, (other, index, loss)
                if freed == most_freed:
                    break
        return found

    def _freed(self, now: Candidate, then: Candidate) -> int:
        """Returns how many cards a server frees by a move; 0 if it cannot move."""
        if then.card_type == now.card_type:
            return _cards(now) - _cards(then)
        return _cards(now) if _cards(then) <= self._left[then.card_type] else 0

    def _current_candidate(self, server: int) -> Candidate | None:
        options, index = self._options[server], self._taken[server]
        return options[index] if index < len(options) else None

    def _value(self, server: int) -> float:
        current = self._current_candidate(server)
        return self._outside[server] if current is None else current.value

    def _take(self, server: int, index: int) -> None:
        current, options = self._current_candidate(server), self._options[server]
        if current is not None:
            self._left[current.card_type] += _cards(current)
            self._holders[current.card_type].discard(server)
        self._taken[server] = index
        if index < len(options):
            self._hold(server, options[index])

    def _hold(self, server: int, candidate: Candidate) -> None:
        if cards := _cards(candidate):
            self._left[candidate.card_type] -= cards
            self._holders[candidate.card_type].add(server)


def _cards(candidate: Candidate) -> int:
    """Like the property of the same name, but faster."""
    return candidate.replicas * candidate.cards_per_replica


def _outside(contenders: Sequence[Contender]) -> list[float]:
    """Returns by server the value that stands for being left out."""
    ends = [abs(c.candidates[0].value) + abs(c.candidates[-1].value) for c in contenders]
    total = 1 + 2 * sum(ends)
    lowest_first = sorted({contender.priority for contender in contenders}, reverse=True)
    by_priority = {p: total * PRIORITY_STEP**rank for rank, p in enumerate(lowest_first)}
    return [by_priority[contender.priority] for contender in contenders]
