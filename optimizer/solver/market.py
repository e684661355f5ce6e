"""Makes plans from prices of cards (the Lagrangian relaxation of the card limits). Pure.

Each type of card has a price, and every server takes the candidate with the least sum of value and
price. Prices of types in excess demand rise and the others fall, by a power of demand over supply.
For any prices, the sum that servers pay minus the price of all cards is a lower bound of the total
value, so the prices with the highest bounds are the best guide. The candidates taken at these
prices are then cut to the available cards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, mul
from typing import Self

import numpy as np

from common.numerics import BoolArray, FloatArray, IntArray
from optimizer.solver import Contender

ROUNDS = 16  # rounds of prices; by then most bounds are within 1 % of the highest

UNASKED = 0.02  # initial price of a type without excess demand, as a share of the value per card
MAX_MOVE = 1.6  # largest change of a price's logarithm in one round, before its step factor
FASTER, SLOWER = 1.2, 0.5  # step factors of a price that keeps its direction, or reverses
STEPS = 0.05, 2.0
A_BIT = 0.1  # fraction of a card, added to demand and supply so that neither is 0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by type of card, and a lower bound of the total value of a plan for all servers."""

    bound: float
    per_card: FloatArray


@dataclass(frozen=True, slots=True)
class Market:
    """The candidates of all contenders: a row per accelerator, a column per server. Prices and
    plans need a market without hopeless servers."""

    value: FloatArray  # [rows, servers], infinite without a candidate that fits alone
    need: FloatArray  # [rows, servers], cards
    index: IntArray  # [rows, servers], the candidate's index in its server's list
    card_type: IntArray  # [rows]
    cards: FloatArray  # [types]
    counts: IntArray  # [servers], numbers of candidates
    priority: IntArray  # [servers]

    @classmethod
    def of(cls, contenders: Sequence[Contender], cards: Mapping[str, int]) -> Self:
        candidates = list(chain.from_iterable(contender.candidates for contender in contenders))
        # Arrays, because with hundreds of servers Python loops would take most of a solve.
        accelerators, values, replicas, cards_each = (
            map(attrgetter(name), candidates)
            for name in ("accelerator", "value", "replicas", "cards_per_replica")
        )
        names = list(accelerators)
        row_by_name = {name: row for row, name in enumerate(sorted(set(names)))}
        type_names = [candidates[names.index(name)].card_type for name in row_by_name]
        types = sorted(set(type_names))
        limits = np.array([float(cards.get(name, 0)) for name in types])
        card_type = np.array([types.index(name) for name in type_names])

        size = len(candidates)
        counts = np.array([len(contender.candidates) for contender in contenders])
        column = np.repeat(np.arange(len(counts)), counts)
        at = np.fromiter(map(row_by_name.__getitem__, names), np.int64, size), column
        shape = len(row_by_name), len(counts)
        value, need, index = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape, np.int64)
        value[at] = np.fromiter(values, float, size)
        need[at] = np.fromiter(map(mul, replicas, cards_each), float, size)
        index[at] = np.arange(size) - (np.cumsum(counts) - counts)[column]
        value[need > limits[card_type][:, None]] = np.inf
        priority = np.array([contender.priority for contender in contenders])
        return cls(value, need, index, card_type, limits, counts, priority)

    @property
    def is_hopeless(self) -> BoolArray:
        """For each server, whether no candidate fits even alone."""
        hopeless: BoolArray = np.isinf(self.value.min(axis=0))
        return hopeless

    def best_prices(self, count: int) -> list[Prices]:
        """Returns prices with different demands, the highest bound first."""
        offered = self.value < np.inf
        start = np.abs(self.value[offered]).sum() / max(self.need[offered].sum(), 1.0)
        price, before = np.zeros(len(self.cards)), np.zeros(len(self.cards))
        step = np.ones(len(self.cards))
        need, card_type = self.need.ravel(), np.repeat(self.card_type, self.need.shape[1])
        found: dict[bytes, Prices] = {}
        for number in range(ROUNDS):
            cost = self._cost(price)
            least = cost.min(axis=0)
            takes = np.flatnonzero(cost == least)
            demand = np.bincount(card_type[takes], need[takes], len(price))
            bound = float(least.sum() - price @ self.cards)
            earlier = found.get(demand.tobytes())
            if earlier is None or bound > earlier.bound:
                found[demand.tobytes()] = Prices(bound, price)
            if number == 0:
                price = np.where(demand > self.cards, start, UNASKED * start)
            move = _within(-MAX_MOVE, np.log((demand + A_BIT) / (self.cards + A_BIT)), MAX_MOVE)
            step = _within(STEPS[0], step * np.where(move * before < 0, SLOWER, FASTER), STEPS[1])
            price, before = price * np.exp(step * move), move
        return sorted(found.values(), key=lambda prices: -prices.bound)[:count]

    def plan(self, prices: Prices) -> list[int]:
        """Returns the index of the candidate that each server takes at these prices within the
        cards; the number of its candidates if it is left out."""
        cut = _Cut(self, self._cost(prices.per_card))
        for card_type in np.argsort(cut.left, kind="stable").tolist():
            while cut.left[card_type] < 0:
                if not cut.move_away(card_type):
                    cut.leave_out(card_type)
        return cut.taken()

    def _cost(self, per_card: FloatArray) -> FloatArray:
        return self.value + per_card[self.card_type][:, None] * self.need


def _within(least: float, values: FloatArray, most: float) -> FloatArray:
    """Returns the values clipped, faster than `np.clip` for few values."""
    within: FloatArray = np.minimum(np.maximum(values, least), most)
    return within


class _Cut:
    """Moves servers off types in excess demand. Owned by one plan."""

    def __init__(self, market: Market, cost: FloatArray) -> None:
        self._market, self._cost = market, cost
        self._row = cost.argmin(axis=0)
        self._is_out = np.zeros(len(self._row), dtype=np.bool_)
        need = market.need[self._row, np.arange(len(self._row))]
        demand = np.bincount(market.card_type[self._row], need, len(market.cards))
        self.left = market.cards - demand  # cards by type, negative with excess demand

    def move_away(self, card_type: int) -> bool:
        """Move servers off a type until it suffices, the least loss per freed card first. Returns
        False if none could be moved."""
        market, left = self._market, self.left
        members = self._members(card_type)
        row = self._row[members]
        held, need = market.need[row, members], market.need[:, members]
        is_same = (market.card_type == card_type)[:, None]
        freed = held - np.where(is_same, need, 0.0)
        can_move = (freed > 0) & (is_same | (need <= left[market.card_type][:, None]))
        more = self._cost[:, members] - self._cost[row, members]
        loss = np.full(more.shape, np.inf)
        np.divide(more, freed, out=loss, where=can_move)
        to = loss.argmin(axis=0)
        least = loss[to, np.arange(len(members))]
        moved = False
        for at in np.argsort(least, kind="stable").tolist():
            if left[card_type] >= 0 or np.isinf(least[at]):
                break
            other = market.card_type[to[at]]
            if other == card_type or need[to[at], at] <= left[other]:
                left[card_type] += held[at]
                left[other] -= need[to[at], at]
                self._row[members[at]] = to[at]
                moved = True
        return moved

    def leave_out(self, card_type: int) -> None:
        """Leave out servers until the type suffices: lowest priority first, then most cards."""
        members = self._members(card_type)
        held = self._market.need[self._row[members], members]
        for at in np.lexsort((-held, -self._market.priority[members])).tolist():
            if self.left[card_type] >= 0:
                return
            self._is_out[members[at]] = True
            self.left[card_type] += held[at]

    def taken(self) -> list[int]:
        index = self._market.index[self._row, np.arange(len(self._row))]
        taken: list[int] = np.where(self._is_out, self._market.counts, index).tolist()
        return taken

    def _members(self, card_type: int) -> IntArray:
        """Returns the servers that hold cards of the type."""
        need = self._market.need[self._row, np.arange(len(self._row))]
        is_on = self._market.card_type[self._row] == card_type
        return np.flatnonzero(is_on & (need > 0) & ~self._is_out)
