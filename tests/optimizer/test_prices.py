"""The price solver: never worse than greedy, near the MILP, fair to priorities, and bounded."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.candidates.replicas import SizingCache
from optimizer.optimize import SolveOptions, choose_solver, optimize
from optimizer.solver import Candidate, Contender, Problem, Scarcity, Solution
from optimizer.solver.exchange import Assignment
from optimizer.solver.greedy import solve_greedily
from optimizer.solver.market import Market
from optimizer.solver.milp import MilpOptions, solve_milp
from optimizer.solver.prices import solve_by_prices
from optimizer.spec import OptimizerSpec, SaturationPolicy
from tests.optimizer.support import server, system

SCARCITIES = [
    Scarcity(policy, delayed) for policy, delayed in product(SaturationPolicy, (False, True))
]
TYPES = "ABCD"


def candidate(name: str, replicas: int, value: float, cards: int = 1) -> Candidate:
    """On an accelerator of the type that its name begins with."""
    return Candidate(
        accelerator=name, card_type=name[:1], replicas=replicas, batch=8, cost=abs(value),
        value=value, itl_ms=1, ttft_ms=1, utilization=0.5, max_rate_per_s=1.0,
        cards_per_replica=cards, cost_per_replica=abs(value) / max(replicas, 1),
    )  # fmt: skip


def contender(name: str, *candidates: Candidate, priority: int = 1) -> Contender:
    ordered = sorted(candidates, key=lambda c: (c.value, c.cost, c.accelerator))
    return Contender(name, priority, tuple(ordered), demand_per_s=1.0)


@st.composite
def problems(draw: st.DrawFn, most_servers: int = 12) -> Problem:
    """Few cards, some types without any, accelerators that share a type, equal and negative values,
    servers to be scaled to zero."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    accelerators = [t + size for t in TYPES for size in ("", "x2")]
    contenders = []
    for number in range(draw(st.integers(0, most_servers))):
        options = [
            candidate(name, rng.randint(1, 6), rng.choice([-5.0, 0.0, 7.0, rng.uniform(1, 90)]),
                      2 if name.endswith("x2") else 1)
            for name in rng.sample(accelerators, rng.randint(1, 5))
        ]  # fmt: skip
        if rng.random() < 0.1:
            options = [candidate("", 0, 0.0, 0)]
        contenders.append(contender(f"s{number:02}", *options, priority=rng.choice([1, 2, 9])))
    rng.shuffle(contenders)
    cards = {t: rng.choice([0, rng.randint(0, 30)]) for t in TYPES if rng.random() < 0.9}
    return Problem(tuple(contenders), cards)


def shares(problem: Problem, solution: Solution, scarcity: Scarcity) -> list[float]:
    """Returns servers in full and then shares of servers, by priority or all told."""
    by_priority: dict[int, list[float]] = {c.priority: [] for c in problem.contenders}
    for c in problem.contenders:
        for choice in solution.choices.get(c.server, ()):
            share = choice.replicas / choice.candidate.replicas if choice.candidate.replicas else 1
            by_priority[c.priority].append(min(share, 1.0))
    full = [float(sum(share == 1 for share in by_priority[p])) for p in sorted(by_priority)]
    missing = [sum(by_priority[p]) for p in sorted(by_priority)]
    if scarcity.delayed:
        return full + missing
    return [figure for pair in zip(full, missing, strict=True) for figure in pair]


def value(solution: Solution) -> float:
    return sum(
        choice.candidate.value * min(choice.replicas / max(choice.candidate.replicas, 1), 1)
        if choice.candidate.replicas
        else choice.candidate.value
        for (choice,) in solution.choices.values()
    )


@given(problems(), st.sampled_from(SCARCITIES))
def test_it_serves_no_priority_worse_than_greedy_and_at_no_higher_value(
    problem: Problem, scarcity: Scarcity
) -> None:
    greedy = solve_greedily(problem, scarcity)
    found = solve_by_prices(problem, scarcity)
    ours, theirs = (shares(problem, each, scarcity) for each in (found, greedy))
    assert [round(x, 9) for x in ours] >= [round(x, 9) for x in theirs]
    if ours == pytest.approx(theirs, abs=1e-9):
        assert value(found) <= value(greedy) + 1e-6


@given(problems(), st.sampled_from(SCARCITIES))
def test_it_keeps_within_the_cards_and_accounts_for_every_server(
    problem: Problem, scarcity: Scarcity
) -> None:
    found = solve_by_prices(problem, scarcity)
    assert found.solver == "prices"
    assert found.choices.keys() | found.unserved.keys() == {c.server for c in problem.contenders}
    assert not found.choices.keys() & found.unserved.keys()
    used = dict.fromkeys(TYPES, 0)
    for c in problem.contenders:
        for choice in found.choices.get(c.server, ()):
            assert choice.candidate in c.candidates
            assert choice.replicas <= choice.candidate.replicas
            if choice.cards:
                used[choice.candidate.card_type] += choice.cards
    assert all(used[t] <= problem.cards.get(t, 0) for t in TYPES)


@given(problems(), st.sampled_from(SCARCITIES), st.randoms(use_true_random=False))
def test_equal_problems_have_equal_answers_in_whatever_order(
    problem: Problem, scarcity: Scarcity, rng: random.Random
) -> None:
    shuffled = list(problem.contenders)
    rng.shuffle(shuffled)
    first = solve_by_prices(problem, scarcity)
    second = solve_by_prices(replace(problem, contenders=tuple(shuffled)), scarcity)
    assert dict(first.choices) == dict(second.choices)


@given(problems())
def test_the_bound_that_prices_prove_is_below_the_optimum(problem: Problem) -> None:
    milp = solve_milp(problem, Scarcity(), MilpOptions(False, 20, 0))
    market = Market.of(problem.contenders, problem.cards) if problem.contenders else None
    if market is None or milp.unserved or market.is_hopeless.any():
        return
    for prices in market.best_prices(8):
        assert prices.bound <= value(milp) + 1e-6


def test_near_the_milp_where_greedy_is_not() -> None:
    """Greedy lets who loses most by waiting go first, however many cards that takes."""
    crowd = [
        contender(f"s{i}", candidate("A", 1, 10.0), candidate("B", 1, 29.0)) for i in range(10)
    ]
    big = contender("big", candidate("A", 10, 10.0), candidate("B", 10, 30.0))
    problem = Problem((*crowd, big), {"A": 10, "B": 10})
    assert value(solve_greedily(problem, Scarcity())) == 10 + 290
    assert value(solve_by_prices(problem, Scarcity())) == 30 + 100


def test_a_server_comes_in_where_another_can_make_room() -> None:
    rigid = contender("rigid", candidate("A", 4, 10.0), priority=2)
    pliant = contender("pliant", candidate("A", 3, 5.0), candidate("B", 3, 50.0))
    problem = Problem((rigid, pliant), {"A": 4, "B": 3})
    assert solve_greedily(problem, Scarcity()).unserved.keys() == {"rigid"}
    assert not solve_by_prices(problem, Scarcity()).unserved


def test_a_higher_priority_is_not_left_out_for_many_lower_ones() -> None:
    high = contender("high", candidate("A", 8, 80.0), priority=1)
    low = [contender(f"low{i}", candidate("A", 1, 1.0), priority=2) for i in range(8)]
    solution = solve_by_prices(Problem((*low, high), {"A": 8}), Scarcity())
    assert solution.choices.keys() == {"high"}


def test_best_effort_of_a_high_priority_stands_unless_the_policy_is_delayed() -> None:
    """`high` never fits whole. Its part of A keeps `low` out unless parts are dealt at last."""
    high = contender("high", candidate("A", 9, 9.0), priority=1)
    low = contender("low", candidate("A", 5, 5.0), priority=2)
    problem = Problem((high, low), {"A": 8})

    def replicas(delayed: bool) -> dict[str, int]:
        scarcity = Scarcity(SaturationPolicy.PRIORITY_EXHAUSTIVE, delayed)
        solution = solve_by_prices(problem, scarcity)
        return {name: choice.replicas for name, (choice,) in solution.choices.items()}

    assert replicas(delayed=False) == {"high": 8}
    assert replicas(delayed=True) == {"high": 3, "low": 5}


def test_exchanges_stop_when_their_looks_are_spent() -> None:
    rigid = contender("rigid", candidate("A", 4, 10.0))
    pliant = contender("pliant", candidate("A", 3, 5.0), candidate("B", 3, 50.0))
    for looks, left_out in ((0, [1]), (1, [])):
        plan = Assignment((rigid, pliant), {"A": 4, "B": 3}, [1, 0])
        assert plan.improve(looks) == 0
        assert plan.left_out == left_out


def test_the_flag_chooses_it_below_the_flags_of_the_reference() -> None:
    options = SolveOptions(SizingCache())

    def chosen(**flags: bool) -> str:
        solver = choose_solver(OptimizerSpec(**flags), options)  # type: ignore[arg-type]
        return solver(Problem((), {})).solver

    assert chosen() == "greedy"
    assert chosen(price_solver=False) == "greedy"
    assert chosen(price_solver=True) == "prices"
    assert chosen(price_solver=True, milp_solver=True) == "milp"
    assert chosen(price_solver=True, unlimited=True) == "unlimited"


def test_stabilisation_holds_beside_it() -> None:
    running = {"accelerator": "B", "numReplicas": 9, "cost": 153.0}
    small = system(
        [server("a", currentAlloc=running), server("b")],
        capacity={"A": 4, "B": 20}, priceSolver=True, minGainPercent=100,
    )  # fmt: skip
    answer = optimize(small, SolveOptions(SizingCache()))
    assert answer.solver == "prices"
    assert answer.allocations["a"].is_kept
    assert answer.allocations["a"].replicas == 9
