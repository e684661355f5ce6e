"""The reference's solvers, unlimited and greedy: who would lose most by waiting goes first.

Within a priority the server with the largest step to its next candidate (`delta`) is served
first; one whose candidate no longer fits falls back to its next and re-queues. Values and deltas
are float32 as in the reference, where their rounding decides between servers of one model;
remaining ties go to the lower server name. Pure: any thread.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import groupby

import numpy as np

from optimizer.solver import Contender, Problem, Scarcity, Solution, SolverChoice
from optimizer.solver.saturation import Stock, best_effort

NO_ALTERNATIVE = float(np.finfo(np.float32).max)  # delta of a last candidate: serve it now

NO_ROOM = "capacity: none of its candidates fits the cards that are left"

_Rank = tuple[int, float, float, str]


def solve_greedily(problem: Problem, scarcity: Scarcity) -> Solution:
    turns = sorted((_Turn(contender) for contender in problem.contenders), key=lambda t: t.rank)
    if scarcity.delayed:
        groups = [turns]
    else:
        groups = [list(g) for _, g in groupby(turns, key=lambda t: t.contender.priority)]
    stock = Stock(problem.cards)
    choices: dict[str, SolverChoice] = {}
    for group in groups:
        leftovers = _allocate(group, stock, choices)
        choices |= best_effort(scarcity.policy, leftovers, stock)
    return Solution(
        choices={server: (choice,) for server, choice in choices.items()},
        unserved={c.server: NO_ROOM for c in problem.contenders if c.server not in choices},
        solver="greedy",
    )


def solve_unlimited(problem: Problem) -> Solution:
    """Gives every server its best candidate, as there are no limits."""
    best = {contender.server: contender.candidates[0] for contender in problem.contenders}
    choices = {server: (SolverChoice(each, each.replicas),) for server, each in best.items()}
    return Solution(choices, solver="unlimited")


class _Turn:
    """A server in the queue and the candidate it tries next. Owned by one solve."""

    def __init__(self, contender: Contender, index: int = 0) -> None:
        self.contender, self.index = contender, index
        value = contender.candidates[index].value
        if index + 1 < len(contender.candidates):
            delta = float(np.float32(contender.candidates[index + 1].value - value))
        else:
            delta = NO_ALTERNATIVE
        self.rank: _Rank = (contender.priority, -delta, -value, contender.server)


def _allocate(
    turns: Iterable[_Turn], stock: Stock, choices: dict[str, SolverChoice]
) -> list[Contender]:
    """Serve in order. Returns the servers without a fitting candidate, in the order they failed."""
    waiting = [(turn.rank, turn) for turn in turns]
    heapify(waiting)
    leftovers = []
    while waiting:
        _, turn = heappop(waiting)
        candidate = turn.contender.candidates[turn.index]
        if stock.fits(candidate, candidate.replicas):
            stock.take(candidate, candidate.replicas)
            choices[turn.contender.server] = SolverChoice(candidate, candidate.replicas)
        elif turn.index + 1 < len(turn.contender.candidates):
            retry = _Turn(turn.contender, turn.index + 1)
            heappush(waiting, (retry.rank, retry))
        else:
            leftovers.append(turn.contender)
    return leftovers
