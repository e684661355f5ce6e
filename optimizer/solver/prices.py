"""Finds nearly the least value under the card limits, in a fraction of the MILP's time. Any thread.

It starts from the greedy answer, and falls back on it. If that gives every server its best
candidate, it is optimal. Otherwise prices of cards (`market`) make plans, and exchanges between
servers (`exchange`) improve them. The best plan serves the most servers whole, priority by
priority, and then has the least total value, as in the MILP. Work is bounded by counts, not by a
clock, so equal problems give equal answers on any machine.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from math import fsum

from optimizer.solver import Contender, Problem, Scarcity, Solution, SolverChoice
from optimizer.solver.exchange import Assignment
from optimizer.solver.greedy import NO_ROOM, solve_greedily
from optimizer.solver.market import Market
from optimizer.solver.saturation import Stock, best_effort

NAME = "prices"

SMALL = 100  # servers; up to here prices are too coarse and more tries are cheap
DEEPER = 4  # most repetitions of a search for the higher priorities alone


# Bounds on a small search and a large one: plans made from prices, and looks at servers that might
# make room for another, in all exchanges.
SMALL_EFFORT, LARGE_EFFORT = (8, 100_000), (1, 300)

_Choices = dict[str, SolverChoice]


def solve_by_prices(problem: Problem, scarcity: Scarcity) -> Solution:
    """Solves for limited cards, never worse than the greedy solver, rarely far from the MILP."""
    greedy = solve_greedily(problem, scarcity)
    if _all_have_their_best(problem.contenders, greedy.choices):
        return replace(greedy, solver=NAME)
    contenders = sorted(problem.contenders, key=lambda contender: contender.server)
    start = {server: choice for server, (choice,) in greedy.choices.items()}
    answers = [start, *_answers(contenders, problem.cards, start, scarcity)]
    best = min(answers, key=lambda choices: _shortfall(contenders, choices, scarcity))
    return Solution(
        choices={server: (choice,) for server, choice in best.items()},
        unserved={c.server: NO_ROOM for c in contenders if c.server not in best},
        solver=NAME,
    )


def _answers(
    contenders: Sequence[Contender],
    cards: Mapping[str, int],
    start: _Choices,
    scarcity: Scarcity,
) -> Iterator[_Choices]:
    """Yields other answers than greedy's: one with best effort last, and, because that may
    violate the order of priorities, one that keeps greedy's best effort."""
    parts = {s: c for s, c in start.items() if c.replicas < c.candidate.replicas}
    whole = {s: c for s, c in start.items() if s not in parts} if parts else start
    found = _search(contenders, cards, whole)
    left_out = sorted(
        (c for c in contenders if c.server not in found), key=lambda c: (c.priority, c.server)
    )
    if not left_out:
        yield found
        return
    stock = Stock(cards, found.values())
    yield found | best_effort(scarcity.policy, left_out, stock)
    if parts and not scarcity.delayed:
        others = [c for c in contenders if c.server not in parts]
        yield _search(others, Stock(cards, parts.values()).cards, whole) | parts


def _shortfall(
    contenders: Iterable[Contender], choices: _Choices, scarcity: Scarcity
) -> tuple[tuple[float, ...], float]:
    """Returns a sort key, better answers first: by the number of servers not served whole and
    by their missing shares, for each priority from the highest; last by total value."""
    values = [choice.candidate.value for choice in choices.values()]
    lacking: dict[int, list[float]] = defaultdict(list)  # shares by priority
    for contender in contenders:
        choice = choices.get(contender.server)
        if choice is None:
            lacking[contender.priority].append(1.0)
        elif choice.replicas < choice.candidate.replicas:
            share = 1 - choice.replicas / choice.candidate.replicas
            lacking[contender.priority].append(share)
            values.append(-share * choice.candidate.value)
    total = fsum(values)
    if not lacking:
        return (), total
    shares = [lacking[priority] for priority in sorted({c.priority for c in contenders})]
    counts, missing = [float(len(each)) for each in shares], [fsum(each) for each in shares]
    if scarcity.delayed:
        return (*counts, *missing), total
    return tuple(chain.from_iterable(zip(counts, missing, strict=True))), total


def _all_have_their_best(
    contenders: Iterable[Contender], choices: Mapping[str, tuple[SolverChoice, ...]]
) -> bool:
    for contender in contenders:
        parts = choices.get(contender.server)
        if parts is None or parts[0].candidate is not contender.candidates[0]:
            return False
    return all(choice.is_full for (choice,) in choices.values())


def _search(contenders: Sequence[Contender], cards: Mapping[str, int], start: _Choices) -> _Choices:
    """Returns the best plan found that serves servers whole, beginning with `start`."""
    if not contenders:
        return {}
    market = Market.of(contenders, cards)
    if market.is_hopeless.any():
        return _search(list(compress(contenders, ~market.is_hopeless)), cards, start)
    is_small = len(contenders) <= SMALL
    num_plans, looks = SMALL_EFFORT if is_small else LARGE_EFFORT
    plans = [
        Assignment(contenders, cards, market.plan(prices))
        for prices in market.best_prices(num_plans)
    ]
    if is_small:
        taken = [_index(contender, start.get(contender.server)) for contender in contenders]
        plans.append(Assignment(contenders, cards, taken))
    for plan in plans:
        looks = plan.improve(looks)
    best = min(plans, key=lambda plan: plan.worth) if len(plans) > 1 else plans[0]
    for _ in range(DEEPER):
        deeper = _without_the_rest(contenders, cards, best.left_out)
        if deeper is None:
            break
        looks = deeper.improve(looks)
        if deeper.worth >= best.worth:
            break
        best = deeper
    return best.choices()


def _without_the_rest(
    contenders: Sequence[Contender], cards: Mapping[str, int], left_out: Sequence[int]
) -> Assignment | None:
    """Returns a plan for the priorities down to the highest with a server left out, ignoring lower
    ones; None if there are no lower ones."""
    is_above = [bool(left_out) and c.priority <= left_out[0] for c in contenders]
    if not left_out or all(is_above):
        return None
    market = Market.of(list(compress(contenders, is_above)), cards)
    found = iter(market.plan(market.best_prices(1)[0]))
    taken = [
        next(found) if above else len(contender.candidates)
        for contender, above in zip(contenders, is_above, strict=True)
    ]
    return Assignment(contenders, cards, taken)


def _index(contender: Contender, choice: SolverChoice | None) -> int:
    if choice is None:
        return len(contender.candidates)
    return contender.candidates.index(choice.candidate)
