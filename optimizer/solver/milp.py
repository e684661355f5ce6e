"""Least value under the card limits, by mixed integer programming with HiGHS. Any thread.

Single: binary x_ij, "server i takes candidate j whole", with its replicas m_ij and cards u_ij.
Heterogeneous: integer n_ij replicas of several accelerators that together take the demand.

    single          min  sum value_ij x_ij,  sum_j x_ij + y_i = 1 for each i
    heterogeneous   min  sum cost_ij n_ij,   sum_j rate_ij n_ij + demand_i y_i >= demand_i
    both            sum u n <= cards for each type;  y_i binary: "server i is left out"

Costs of accelerators other than the current one carry the transition penalty of 0.1. Servers are
left out only if they must be, the lowest priorities first: one solve with all y = 0 usually
settles it; if not, the most servers are kept priority by priority and the value comes last.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from common.numerics import FloatArray
from optimizer.solver import (
    MOVE_PENALTY,
    Candidate,
    Contender,
    Problem,
    Scarcity,
    Solution,
    SolverChoice,
)
from optimizer.solver.greedy import solve_greedily
from optimizer.solver.saturation import Stock, best_effort

NO_ROOM = "capacity: the cards do not suffice for it beside the servers that were kept"

# The rate of n replicas may fall short of the demand by this fraction, the solver's tolerance.
RATE_SLACK = 1e-6

EXACT_COLUMNS = 1_000  # problems up to this size are solved to the optimum, if time allows

# The objective is scaled so that its largest term is OBJECTIVE_SCALE. Each place in a server's
# order (value, cost, name) costs TIE_STEP more, which decides ties and nothing else.
OBJECTIVE_SCALE, TIE_STEP = 1e6, 0.01


@dataclass(frozen=True, slots=True)
class MilpOptions:
    heterogeneous: bool
    time_limit_s: float
    relative_gap: float


def solve_milp(problem: Problem, scarcity: Scarcity, options: MilpOptions) -> Solution:
    """Solves for limited cards. If it finds nothing, the greedy solver answers, with a note."""
    name = "milp-heterogeneous" if options.heterogeneous else "milp"
    idle: list[Contender] = []
    contenders: list[Contender] = []
    for contender in problem.contenders:
        runs_nothing = all(c.replicas == 0 for c in contender.candidates)
        (idle if runs_nothing else contenders).append(contender)
    settled = {c.server: (SolverChoice(c.candidates[0], 0),) for c in idle}
    if not contenders:
        return Solution(settled, solver=name)
    fitting = tuple(_fitting(contender, problem.cards, options) for contender in contenders)
    program = _Program(Problem(fitting, problem.cards), options)
    found = program.run()
    if found is None or not np.isfinite(found.gap or 0):
        greedy = solve_greedily(problem, scarcity)
        if found is None or _served(contenders, greedy.choices) > _served(
            contenders, found.choices
        ):
            note = f"MILP found nothing better in {options.time_limit_s:g} s; greedy instead"
            return replace(greedy, notes=(note,))
    choices = {**settled, **found.choices}
    left_out = sorted(
        (c for c in contenders if c.server not in choices), key=lambda c: (c.priority, c.server)
    )
    stock = Stock(problem.cards, chain.from_iterable(choices.values()))
    for server, choice in best_effort(scarcity.policy, left_out, stock).items():
        choices[server] = (choice,)
    unserved = {c.server: NO_ROOM for c in left_out if c.server not in choices}
    return replace(found, choices=choices, unserved=unserved, solver=name)


def _fitting(contender: Contender, cards: Mapping[str, int], options: MilpOptions) -> Contender:
    """Returns the contender without candidates that the cards do not hold even alone. A very dear
    one would make the others' differences as small as those of ties."""
    fitting = tuple(
        each
        for each in contender.candidates
        if each.cards_per_replica * (1 if options.heterogeneous else each.replicas)
        <= cards.get(each.card_type, 0)
    )
    return replace(contender, candidates=fitting)


def _served(contenders: list[Contender], choices: Mapping[str, object]) -> list[int]:
    """Returns how many servers of each priority have a choice, the highest priority first."""
    counts = dict.fromkeys(sorted({contender.priority for contender in contenders}), 0)
    for contender in contenders:
        counts[contender.priority] += contender.server in choices
    return list(counts.values())


class _Program:
    """The matrices of one problem. Columns: one per (server, candidate), then one y per server,
    then, heterogeneous only, one z per server that has a current accelerator: "it is left"."""

    def __init__(self, problem: Problem, options: MilpOptions) -> None:
        self._options = options
        self._cards = problem.cards
        self._contenders = tuple(sorted(problem.contenders, key=lambda c: c.server))
        self._columns = [(i, c) for i, k in enumerate(self._contenders) for c in k.candidates]
        self._first_y = len(self._columns)
        self._moves = self._movable() if options.heterogeneous else []
        self._first_z = self._first_y + len(problem.contenders)
        self._size = self._first_z + len(self._moves)
        self._constraints = [self._capacity(), self._service(), *self._extras()]
        self._gap = 0.0 if self._size <= EXACT_COLUMNS else options.relative_gap
        self._deadline = time.monotonic() + options.time_limit_s

    def run(self) -> Solution | None:
        """Returns the servers kept whole; None if no solution was found in time."""
        notes: list[str] = []
        solved = self._minimise(self._objective(), self._gap, everyone=True)
        if solved is None:
            solved = self._leave_out_fewest()
            notes.append("the cards do not hold all servers; the lowest priorities were left out")
        if solved is None or not self._holds(solved[0]):
            return None
        x, gap = solved
        if not np.isfinite(gap):
            notes.append("time limit reached before the answer was proven the best")
        elif gap > self._options.relative_gap:
            notes.append(f"time limit reached at a gap of {100 * gap:.2g} %")
        return Solution(self._choices(x), notes=tuple(notes), gap=gap)

    def _leave_out_fewest(self) -> tuple[FloatArray, float] | None:
        """Keep the most servers, priority by priority; then, with those counts, the least value.
        The gap is infinite if there was no time to prove the counts."""
        kept: list[LinearConstraint] = []
        best, is_proven = None, True
        priorities = sorted({c.priority for c in self._contenders})
        for rank, priority in enumerate(priorities):
            row = np.zeros(self._size)
            for i, contender in enumerate(self._contenders):
                row[self._first_y + i] = contender.priority == priority
            fewest = self._minimise(row, 0.0, extra=kept, turns=len(priorities) - rank + 1)
            if fewest is None:
                break
            best = fewest[0], np.inf
            kept.append(LinearConstraint(row, -np.inf, round(float(row @ fewest[0])) + 0.5))
            is_proven = is_proven and fewest[1] == 0
        else:
            cheapest = self._minimise(self._objective(), self._gap, extra=kept)
            if cheapest is not None:
                return cheapest if is_proven else (cheapest[0], np.inf)
        return best

    def _minimise(
        self,
        objective: FloatArray,
        relative_gap: float,
        everyone: bool = False,
        extra: Sequence[LinearConstraint] = (),
        turns: int = 1,
    ) -> tuple[FloatArray, float] | None:
        """Returns (x, gap), or None if its share of the time, one of `turns`, did not suffice."""
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            return None
        upper = np.concatenate([self._most(), np.ones(self._size - self._first_y)])
        if everyone:
            upper[self._first_y : self._first_z] = 0
        result = milp(
            objective,
            integrality=np.ones(self._size, dtype=np.int64),
            bounds=Bounds(0, upper),
            constraints=[*self._constraints, *extra],
            options={"time_limit": remaining_s / turns, "mip_rel_gap": relative_gap},
        )
        if result.x is None:
            return None
        gap = 0.0 if result.mip_gap is None else max(float(result.mip_gap), 0.0)
        return np.round(result.x), gap

    def _holds(self, x: FloatArray) -> bool:
        """Returns whether the rounded solution fits the cards; HiGHS may exceed them a little."""
        return not Stock(self._cards, chain.from_iterable(self._choices(x).values())).is_overdrawn

    def _choices(self, x: FloatArray) -> dict[str, tuple[SolverChoice, ...]]:
        """Returns each server's candidates with their replicas, the one with most load first."""
        parts: dict[str, list[SolverChoice]] = {}
        for (i, candidate), count in zip(self._columns, x[: self._first_y], strict=True):
            if count > 0:
                replicas = int(count) if self._options.heterogeneous else candidate.replicas
                parts.setdefault(self._contenders[i].server, []).append(
                    SolverChoice(candidate, replicas)
                )
        kept = x[self._first_y : self._first_z] == 0
        servers = [self._contenders[i].server for i in np.flatnonzero(kept)]
        return {server: tuple(sorted(parts[server], key=_largest_first)) for server in servers}

    def _objective(self) -> FloatArray:
        """Returns the scaled value of every column, with ties broken."""
        value, rank = np.zeros(self._size), np.zeros(self._size)
        first = 0
        for contender in self._contenders:
            for order, candidate in enumerate(contender.candidates):
                rank[first + order] = order
                value[first + order] = self._column_value(contender, candidate)
            first += len(contender.candidates)
        for z, (i, _) in enumerate(self._moves):
            value[self._first_z + z] = MOVE_PENALTY * self._contenders[i].current_cost
        largest = float(np.abs(value).max())
        return value * (OBJECTIVE_SCALE / largest if largest > 0 else 1.0) + TIE_STEP * rank

    def _column_value(self, contender: Contender, candidate: Candidate) -> float:
        if not self._options.heterogeneous:
            return candidate.value
        stays = candidate.accelerator == contender.current_accelerator
        return (1.0 if stays else 1.0 + MOVE_PENALTY) * candidate.cost_per_replica

    def _most(self) -> FloatArray:
        """Returns the upper bound of each (server, candidate) column."""
        if not self._options.heterogeneous:
            return np.ones(self._first_y)
        return np.array([float(max(c.replicas, 1)) for _, c in self._columns])

    def _capacity(self) -> LinearConstraint:
        """Returns the limits on cards of every type. A type without an entry has none."""
        types = sorted({c.card_type for _, c in self._columns if c.cards_per_replica})
        row_by_type = {card_type: row for row, card_type in enumerate(types)}
        rows, columns, cards = [], [], []
        for column, (_, candidate) in enumerate(self._columns):
            if candidate.cards_per_replica:
                replicas = 1 if self._options.heterogeneous else candidate.replicas
                rows.append(row_by_type[candidate.card_type])
                columns.append(column)
                cards.append(replicas * candidate.cards_per_replica)
        matrix = coo_array((cards, (rows, columns)), shape=(len(types), self._size), dtype=float)
        limits = np.array([self._cards.get(card_type, 0) for card_type in types], dtype=float)
        return LinearConstraint(matrix.tocsr(), -np.inf, limits)

    def _service(self) -> LinearConstraint:
        """Returns the rule: a server takes one candidate, or enough replicas, or is left out."""
        out = [1.0] * len(self._contenders)
        if not self._options.heterogeneous:
            return LinearConstraint(self._by_server([1.0] * self._first_y, out), 1, 1)
        # In units of the demand, so that the solver's tolerance is relative.
        shares = [_share(candidate, self._contenders[i]) for i, candidate in self._columns]
        return LinearConstraint(self._by_server(shares, out), 1 - RATE_SLACK, np.inf)

    def _extras(self) -> list[LinearConstraint]:
        """Returns the bounds on replicas, and constraints that set z if an accelerator is left."""
        if not self._options.heterogeneous:
            return []
        low = [float(contender.min_replicas) for contender in self._contenders]
        high = [np.inf if c.max_replicas is None else c.max_replicas for c in self._contenders]
        bounds = LinearConstraint(self._by_server([1.0] * self._first_y, low), low, high)
        if not self._moves:
            return [bounds]
        rows, columns = [], []
        for z, (_, column) in enumerate(self._moves):
            rows += [z, z]
            columns += [column, self._first_z + z]
        shape = (len(self._moves), self._size)
        moved = coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()
        return [bounds, LinearConstraint(moved, 1, np.inf)]

    def _by_server(self, of_candidates: Sequence[float], of_left_out: Sequence[float]) -> csr_array:
        """Returns a matrix with a row per server, with entries for its candidates and for its y."""
        rows = [i for i, _ in self._columns] + list(range(len(self._contenders)))
        entries = ([*of_candidates, *of_left_out], (rows, list(range(self._first_z))))
        return coo_array(entries, shape=(len(self._contenders), self._size)).tocsr()

    def _movable(self) -> list[tuple[int, int]]:
        """Returns (server, column of its accelerator) of servers that run on a candidate."""
        return [
            (i, column)
            for column, (i, candidate) in enumerate(self._columns)
            if candidate.accelerator == self._contenders[i].current_accelerator
        ]


def _largest_first(part: SolverChoice) -> tuple[float, str]:
    return -part.replicas * part.candidate.max_rate_per_s, part.candidate.accelerator


def _share(candidate: Candidate, contender: Contender) -> float:
    """Returns the part of a server's demand that one replica takes, without minReplicas."""
    if candidate.capped:
        return 1.0 / candidate.replicas
    if contender.demand_per_s == 0:
        return 1.0
    return candidate.max_rate_per_s / contender.demand_per_s
