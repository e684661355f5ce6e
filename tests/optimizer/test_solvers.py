"""One contract for every solver, and what is particular to each."""

import random
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.solver import Candidate, Contender, Problem, Scarcity, Solution, Solver
from optimizer.solver.greedy import solve_greedily, solve_unlimited
from optimizer.solver.milp import MilpOptions, solve_milp
from optimizer.solver.prices import solve_by_prices
from optimizer.spec import SaturationPolicy

TYPES = ("A", "B", "C")


def candidate(
    name: str, replicas: int, unit_cost: float, cards: int = 1, **more: object
) -> Candidate:
    cost = replicas * unit_cost
    return Candidate(
        accelerator=name, card_type=name, replicas=replicas, batch=8, cost=cost, value=1.1 * cost,
        itl_ms=1, ttft_ms=1, utilization=0.5, max_rate_per_s=1.0, cards_per_replica=cards,
        cost_per_replica=unit_cost,
    )._replace(**more)  # type: ignore[arg-type]  # fmt: skip


def contender(server: str, *candidates: Candidate, priority: int = 1, **more: object) -> Contender:
    ordered = tuple(sorted(candidates, key=lambda c: (c.value, c.cost, c.accelerator)))
    return Contender(server, priority, ordered, ordered[0].replicas, **more)  # type: ignore[arg-type]


def random_problem(seed: int, servers: int = 6, scarcity: float = 0.6) -> Problem:
    rng = random.Random(seed)
    contenders = []
    need = dict.fromkeys(TYPES, 0)
    for i in range(servers):
        options = []
        for name in rng.sample(TYPES, rng.randint(1, 3)):
            replicas = rng.randint(1, 8)
            options.append(candidate(name, replicas, rng.randint(5, 50), rng.choice([1, 1, 2])))
            need[name] += options[-1].cards
        contenders.append(contender(f"s{i}", *options, priority=rng.randint(1, 3)))
    cards = {name: int(count * scarcity / 2) for name, count in need.items()}
    return Problem(tuple(contenders), cards)


def milp(heterogeneous: bool = False, scarcity: Scarcity | None = None) -> Solver:
    limits = MilpOptions(heterogeneous, time_limit_s=20, relative_gap=0)
    return partial(solve_milp, scarcity=scarcity or Scarcity(), options=limits)


POLICIES = list(SaturationPolicy)
LIMITED: list[Solver] = [
    *(
        partial(solve, scarcity=Scarcity(policy, delayed))
        for solve in (solve_greedily, solve_by_prices)
        for policy, delayed in product(POLICIES, (False, True))
    ),
    *(milp(h, Scarcity(p)) for h, p in product((False, True), POLICIES)),
]


def cards_used(solution: Solution) -> dict[str, int]:
    used = dict.fromkeys(TYPES, 0)
    for parts in solution.choices.values():
        for part in parts:
            used[part.candidate.card_type] += part.cards
    return used


def shape(solution: Solution) -> dict[str, list[tuple[str, int]]]:
    return {
        server: [(part.candidate.accelerator, part.replicas) for part in parts]
        for server, parts in sorted(solution.choices.items())
    }


@pytest.mark.parametrize("solver", LIMITED)
@pytest.mark.parametrize("seed", range(6))
def test_limited_solvers_account_for_every_server_within_the_cards(
    solver: Solver, seed: int
) -> None:
    problem = random_problem(seed)
    solution = solver(problem)
    servers = {c.server for c in problem.contenders}
    assert solution.choices.keys() | solution.unserved.keys() == servers
    assert not solution.choices.keys() & solution.unserved.keys()
    assert all(reason for reason in solution.unserved.values())
    assert all(used <= problem.cards[t] for t, used in cards_used(solution).items())
    assert all(part.replicas > 0 for parts in solution.choices.values() for part in parts)


@pytest.mark.parametrize("solver", [solve_unlimited, *LIMITED])
def test_solvers_do_not_depend_on_the_order_of_servers(solver: Solver) -> None:
    problem = random_problem(3, servers=8)
    expected = shape(solver(problem))
    for seed in range(4):
        shuffled = list(problem.contenders)
        random.Random(seed).shuffle(shuffled)
        assert shape(solver(Problem(tuple(shuffled), problem.cards))) == expected


@pytest.mark.parametrize("solver", [solve_unlimited, *LIMITED])
def test_equal_values_go_to_the_lower_cost_then_the_lower_name(solver: Solver) -> None:
    options = [candidate(name, 1, 10.0) for name in ("C", "B", "A")]
    dear = candidate("A", 1, 20.0)._replace(value=options[0].value, accelerator="0")
    problem = Problem((contender("s", *options, dear),), dict.fromkeys(TYPES, 5))
    assert shape(solver(problem)) == {"s": [("A", 1)]}


def test_unlimited_takes_the_least_value_whatever_the_cards() -> None:
    problem = random_problem(1, scarcity=0)
    solution = solve_unlimited(problem)
    for c in problem.contenders:
        assert solution.choices[c.server][0].candidate == c.candidates[0]


@given(st.integers(0, 10**6))
def test_milp_serves_as_many_as_greedy_or_more_at_no_higher_value(seed: int) -> None:
    problem = random_problem(seed)
    greedy = solve_greedily(problem, Scarcity(delayed=True))
    exact = milp()(problem)
    by_priority = {c.server: c.priority for c in problem.contenders}

    def served(solution: Solution) -> list[int]:
        return [sum(by_priority[s] == p for s in solution.choices) for p in (1, 2, 3)]

    assert served(exact) >= served(greedy)
    if served(exact) == served(greedy):
        values = [sum(part.candidate.value for parts in s.choices.values() for part in parts)
                  for s in (exact, greedy)]  # fmt: skip
        assert values[0] <= values[1] + 1e-6


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_milp_finds_what_trying_everything_finds(seed: int) -> None:
    problem = random_problem(seed, servers=4, scarcity=1.4)
    best = None
    for choice in product(*(c.candidates for c in problem.contenders)):
        used = dict.fromkeys(TYPES, 0)
        for option in choice:
            used[option.card_type] += option.cards
        if all(used[t] <= problem.cards[t] for t in TYPES):
            value = sum(option.value for option in choice)
            best = value if best is None else min(best, value)
    solution = milp()(problem)
    if best is None:
        assert solution.unserved
    else:
        value = sum(parts[0].candidate.value for parts in solution.choices.values())
        assert value == pytest.approx(best)


@given(st.integers(0, 10**6), st.sampled_from([False, True]))
def test_candidate_that_no_cards_hold_changes_nothing_however_dear(
    seed: int, heterogeneous: bool
) -> None:
    problem = random_problem(seed, servers=4)
    dear = candidate("A", 10**9, 40.0, cards=10**6)
    wider = [
        replace(each, candidates=(*each.candidates, dear)) if each.server != "s0" else each
        for each in problem.contenders
    ]
    solve = milp(heterogeneous)
    assert shape(solve(Problem(tuple(wider), problem.cards))) == shape(solve(problem))


def test_milp_leaves_out_the_lowest_priority_and_says_so() -> None:
    problem = Problem(
        (
            contender("low", candidate("A", 2, 1.0), priority=9),
            contender("high", candidate("A", 2, 50.0), priority=1),
        ),
        {"A": 3},
    )
    solution = milp()(problem)
    assert shape(solution) == {"high": [("A", 2)]}
    assert solution.unserved.keys() == {"low"}
    assert "lowest priorities" in solution.notes[0]


def test_milp_honours_the_transition_penalty() -> None:
    """Staying is worth a tenth of both costs, so a slightly cheaper accelerator does not win."""
    stay = candidate("A", 1, 10.0)._replace(value=0.0)
    move = candidate("B", 1, 9.5)._replace(value=0.1 * (10 + 9.5) + 9.5 - 10)
    problem = Problem((contender("s", stay, move),), {"A": 1, "B": 1})
    assert shape(milp()(problem)) == {"s": [("A", 1)]}
    running = contender("s", stay, move, current_accelerator="A", current_cost=10.0)
    mixed = milp(heterogeneous=True)(Problem((running,), {"A": 1, "B": 1}))
    assert shape(mixed) == {"s": [("A", 1)]}


def test_heterogeneous_serves_from_several_accelerators_where_one_does_not_suffice() -> None:
    cheap, dear = candidate("A", 10, 10.0), candidate("B", 10, 17.0, cards=2)
    problem = Problem((contender("s", cheap, dear),), {"A": 3, "B": 200})
    assert shape(milp(heterogeneous=True)(problem)) == {"s": [("B", 7), ("A", 3)]}
    assert shape(milp()(problem)) == {"s": [("B", 10)]}


def test_heterogeneous_honours_replica_bounds() -> None:
    slow, fast = candidate("A", 6, 1.0), candidate("B", 6, 9.0)._replace(max_rate_per_s=4.0)
    wide = Problem((contender("s", slow, fast, min_replicas=6),), {"A": 9, "B": 9})
    assert sum(n for _, n in shape(milp(heterogeneous=True)(wide))["s"]) == 6
    slow, fast = slow._replace(replicas=4), fast._replace(replicas=1)
    narrow = Problem((contender("s", slow, fast, max_replicas=2),), {"A": 9, "B": 9})
    assert shape(milp(heterogeneous=True)(narrow)) == {"s": [("B", 1)]}


def test_milp_without_time_falls_back_to_greedy_and_says_so() -> None:
    limits = MilpOptions(False, time_limit_s=1e-9, relative_gap=0)
    solution = solve_milp(random_problem(2), Scarcity(), limits)
    assert solution.solver == "greedy"
    assert "greedy instead" in solution.notes[0]


def _best_effort(
    policy: SaturationPolicy, delayed: bool = True
) -> dict[str, list[tuple[str, int]]]:
    problem = Problem(
        (
            contender("p1", candidate("A", 9, 3.0), candidate("B", 9, 5.0), priority=1),
            contender("p2a", candidate("A", 9, 2.0), priority=2),
            contender("p2b", candidate("A", 9, 1.0), priority=2),
        ),
        {"A": 7, "B": 2},
    )
    return shape(solve_greedily(problem, Scarcity(policy, delayed)))


def test_saturation_policies_deal_what_is_left_each_in_its_way() -> None:
    assert _best_effort(SaturationPolicy.NONE) == {}
    assert _best_effort(SaturationPolicy.PRIORITY_EXHAUSTIVE) == {"p1": [("A", 7)]}
    assert _best_effort(SaturationPolicy.PRIORITY_ROUND_ROBIN) == {"p1": [("A", 7)]}
    assert _best_effort(SaturationPolicy.ROUND_ROBIN) == {
        "p1": [("A", 3)], "p2a": [("A", 2)], "p2b": [("A", 2)],
    }  # fmt: skip


def test_round_robin_crosses_priorities_only_when_delayed() -> None:
    """Otherwise best effort ends one priority before it looks at the next."""
    assert _best_effort(SaturationPolicy.ROUND_ROBIN, delayed=False) == {"p1": [("A", 7)]}
