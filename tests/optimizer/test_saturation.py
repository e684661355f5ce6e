"""Replicas dealt in turns, many turns at once."""

from hypothesis import given
from hypothesis import strategies as st

from optimizer.solver import Candidate, Contender, SolverChoice
from optimizer.solver.saturation import Stock, best_effort
from optimizer.spec import SaturationPolicy


def candidate(kind: str, replicas: int, cards: int) -> Candidate:
    return Candidate(f"a{kind}", kind, replicas, 8, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, cards, 1.0)


@st.composite
def contenders(draw: st.DrawFn, most: int) -> list[Contender]:
    candidates = st.builds(
        candidate, st.sampled_from("ABC"), st.integers(1, most), st.integers(0, 5)
    )
    offers = draw(st.lists(st.lists(candidates, min_size=1, max_size=3), max_size=6))
    return [Contender(f"s{at}", 1, tuple(each), 1.0) for at, each in enumerate(offers)]


def one_by_one(leftovers: list[Contender], stock: Stock) -> dict[str, int]:
    """As the policy says it: one replica a turn."""
    held: dict[str, int] = {}
    chosen: dict[str, Candidate] = {}
    playing = list(leftovers)
    while playing:
        stay = []
        for each in playing:
            if each.server not in chosen:
                rooms = [c for c in each.candidates if stock.most_replicas(c) > 0]
                if not rooms:
                    continue
                chosen[each.server] = rooms[0]
            mine = chosen[each.server]
            if held.get(each.server, 0) < mine.replicas and stock.fits(mine, 1):
                stock.take(mine, 1)
                held[each.server] = held.get(each.server, 0) + 1
                stay.append(each)
        playing = stay
    return held


@given(contenders(9), st.dictionaries(st.sampled_from("ABC"), st.integers(0, 60)))
def test_dealing_many_turns_at_once_is_dealing_them_one_by_one(
    leftovers: list[Contender], cards: dict[str, int]
) -> None:
    dealt = best_effort(SaturationPolicy.ROUND_ROBIN, leftovers, Stock(cards))
    expected = one_by_one(leftovers, Stock(cards))
    assert {server: choice.replicas for server, choice in dealt.items()} == expected


def test_billions_of_replicas_are_dealt_without_billions_of_turns() -> None:
    leftovers = [Contender(f"s{at}", 1, (candidate("A", 10**9, 1),), 1.0) for at in range(3)]
    dealt = best_effort(SaturationPolicy.ROUND_ROBIN, leftovers, Stock({"A": 2**31}))
    assert [choice.replicas for choice in dealt.values()] == [715827883, 715827883, 715827882]
    assert all(isinstance(choice, SolverChoice) for choice in dealt.values())
