"""Improves a plan by single moves and by pairs of them. Owned by one solve.

A server wishes for every candidate before the one it has, in its order of value, cost and name. It
gets one if the cards are there, or if another server makes room and loses less than it gains. To
be left out counts as more than all values together, and as more still for a higher priority: so
a server comes in wherever that is possible, and never at the price of one of a higher priority.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum

from optimizer.solver import Candidate, Choice, Contender

ROUNDS = 6

PRIORITY_STEP = 4.0  # by which a higher priority counts more than the next


class Plan:
    """Which candidate every contender has, by index; the number of them where it is left out."""

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
        """Returns the priorities of those left out, the highest first."""
        pairs = zip(self._contenders, self._taken, strict=True)
        return sorted(c.priority for c, index in pairs if index == len(c.candidates))

    @property
    def worth(self) -> tuple[tuple[int, ...], float]:
        """Returns a key by which better plans come first: by the servers left out of the highest
        priority, then of the next, and last by the total value."""
        held = zip(self._options, self._taken, strict=True)
        values = [options[index].value for options, index in held if index < len(options)]
        return tuple(-priority for priority in self.left_out), fsum(values)

    def choices(self) -> dict[str, Choice]:
        return {
            contender.server: Choice(candidate, candidate.replicas)
            for contender, index in zip(self._contenders, self._taken, strict=True)
            for candidate in contender.candidates[index : index + 1]
        }

    def improve(self, looks: int) -> int:
        """Returns how many looks at servers that might make room are left of so many."""
        self._looks = looks
        for _ in range(ROUNDS):
            wishing = [i for i, index in enumerate(self._taken) if index]
            wishing.sort(key=lambda i: self._options[i][0].value - self._value(i))
            if not sum([self._grant(server) for server in wishing]):
                break
        return self._looks

    def _grant(self, server: int) -> bool:
        """Gives a server the first candidate that it can have. Returns False if there is none."""
        held = self._held(server)
        value = self._value(server)
        for index in range(self._taken[server]):
            wish = self._options[server][index]
            missing = wish.replicas * wish.cards_per_replica - self._left[wish.card_type]
            if held is not None and held.card_type == wish.card_type:
                missing -= held.replicas * held.cards_per_replica
            if missing > 0:
                room = self._room(server, wish, missing, value - wish.value)
                if room is None:
                    continue
                self._take(*room)
            self._take(server, index)
            return True
        return False

    def _room(
        self, server: int, wish: Candidate, missing: int, gain: float
    ) -> tuple[int, int] | None:
        """Returns which other server can free the cards that are missing at the least loss, and
        what it takes instead; None if that loss is no less than the gain."""
        holders = self._holders[wish.card_type]
        if self._looks < len(holders):
            return None
        self._looks -= len(holders)
        held = self._held(server)
        found = None
        for other in holders:
            options, taken = self._options[other], self._taken[other]
            now = options[taken]
            cards = now.replicas * now.cards_per_replica
            if cards < missing or other == server:
                continue
            for index, option in enumerate(options):
                loss = option.value - now.value
                if loss >= gain:
                    break
                need = option.replicas * option.cards_per_replica
                if option.card_type == wish.card_type:
                    fits = cards - need >= missing
                else:
                    free = self._left[option.card_type]
                    if held is not None and held.card_type == option.card_type:
                        free += held.replicas * held.cards_per_replica
                    fits = need <= free
                if fits and index != taken:
                    gain, found = loss, (other, index)
                    break
            else:
                loss = self._outside[other] - now.value
                if loss < gain:
                    gain, found = loss, (other, len(options))
        return found

    def _held(self, server: int) -> Candidate | None:
        options, index = self._options[server], self._taken[server]
        return options[index] if index < len(options) else None

    def _value(self, server: int) -> float:
        held = self._held(server)
        return self._outside[server] if held is None else held.value

    def _take(self, server: int, index: int) -> None:
        held, options = self._held(server), self._options[server]
        if held is not None:
            self._left[held.card_type] += held.replicas * held.cards_per_replica
            self._holders[held.card_type].discard(server)
        self._taken[server] = index
        if index < len(options):
            self._hold(server, options[index])

    def _hold(self, server: int, candidate: Candidate) -> None:
        if cards := candidate.replicas * candidate.cards_per_replica:
            self._left[candidate.card_type] -= cards
            self._holders[candidate.card_type].add(server)


def _outside(contenders: Sequence[Contender]) -> list[float]:
    """Returns what counts as the value of being left out, by server."""
    total = 1 + 2 * sum(
        max(abs(c.candidates[0].value), abs(c.candidates[-1].value)) for c in contenders
    )
    lowest_first = sorted({contender.priority for contender in contenders}, reverse=True)
    by_priority = {p: total * PRIORITY_STEP**rank for rank, p in enumerate(lowest_first)}
    return [by_priority[contender.priority] for contender in contenders]
