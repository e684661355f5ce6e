"""The fastest way is taken, and trials of the others lose a small share of the time."""

from collections import Counter
from collections.abc import Sequence

import pytest

from inference_api.speculation.ways import MARGIN, TRIAL_SHARE, Ways

Turn = tuple[float, float]  # seconds and tokens, in plain turns
PLAIN: Turn = 1.0, 1.0


def taken(ways: Ways, turns: Sequence[Turn], num_turns: int) -> Counter[int]:
    """Returns how many turns each way got, of those that `turns` says what they take and bring."""
    counts = Counter[int]()
    way = 0
    for _ in range(num_turns):
        counts[way] += 1
        if ways.rests():
            way = 0
        else:
            ways.learn(way, *turns[way])
            way = ways.next()
    return counts


@pytest.mark.parametrize(
    ("turns", "fastest"),
    [
        ([PLAIN, (1.2, 1.0)], 0),
        ([PLAIN, (1.0, 1.0 + MARGIN / 2)], 0),
        ([PLAIN, (1.0, 1.0 + 2 * MARGIN)], 1),
        ([PLAIN, (1.1, 1.0), (2.0, 2.8)], 2),
        ([PLAIN, (1.1, 1.5), (2.0, 2.1)], 1),
        ([PLAIN, (1.5, 1.0), (1.8, 1.0), (4.0, 1.0)], 0),
    ],
)
def test_fastest_is_taken_and_trials_lose_their_share(turns: list[Turn], fastest: int) -> None:
    ways = Ways(len(turns))
    assert taken(ways, turns, 200).most_common(1)[0][0] == fastest
    counts = taken(ways, turns, 20_000)
    ratios = [seconds / tokens for seconds, tokens in turns]
    for way in {*range(len(turns))} - {fastest}:
        assert counts[way] > 0
        lost = counts[way] * max(ratios[way] / ratios[fastest] - 1, MARGIN)
        assert lost == pytest.approx(20_000 * TRIAL_SHARE, rel=0.4)


def test_interrupted_turns_decide_nothing() -> None:
    ways, turns = Ways(2), [PLAIN, (1.2, 2.0)]
    taken(ways, turns, 400)
    ways.learn(1, 1000.0, 1.0)
    assert taken(ways, turns, 100)[1] > 90


@pytest.mark.parametrize("later", [(1.5, 3.0), (1.5, 1.0)])
def test_change_is_found(later: Turn) -> None:
    ways, before = Ways(2), (1.5, 1.0) if later[1] > 1.0 else (1.5, 3.0)
    taken(ways, [PLAIN, before], 3000)
    taken(ways, [PLAIN, later], 2000)
    share = taken(ways, [PLAIN, later], 1000)[1] / 1000
    assert share > 0.9 if later[1] > 1.0 else share < 0.1


def test_nothing_is_measured_between_trials_while_nobody_is_asked() -> None:
    ways, turns = Ways(2), [PLAIN, (2.0, 1.0)]
    taken(ways, turns, 1000)
    assert sum(ways.rests() or ways.next() > 0 for _ in range(1000)) > 900
