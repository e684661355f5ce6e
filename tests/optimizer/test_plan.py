"""The order of a plan's steps, beside a plain way that looks at every change each time."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optimizer.inferno_json import read
from optimizer.questions.plan import plan
from optimizer.spec import SystemData
from optimizer.system import System
from tests.optimizer.support import perf, server, system_data

MODELS = {"m": 1, "n": 3}
"""Accelerators of a replica."""
CARDS = {"A": 1, "B": 2, "C": 1}
"""Of an accelerator. With three of them a server can hold cards for which nobody waits."""
SPARE = st.fixed_dictionaries(dict.fromkeys(CARDS, st.integers(0, 40)))


class Change:
    def __init__(self, name: str, model: str, on: str, now: int, goal: int) -> None:
        self.key = (name, on)
        self.now, self.goal = now, goal
        self.card_type, self.cards = on, MODELS[model] * CARDS[on]

    @property
    def missing(self) -> int:
        return self.goal - self.now


StepFields = tuple[str, str, str, int, int, bool]


def plainly(changes: list[Change], free: dict[str, int] | None) -> Iterator[StepFields]:
    """Yields the steps. As long as anything is missing: all starts that fit; else what may stop;
    else the last that is in the way; else nothing more goes."""

    def step(change: Change, count: int, is_disruptive: bool = False) -> StepFields:
        before, change.now = change.now, change.now + count
        if free is not None:
            free[change.card_type] -= count * change.cards
        action = "scale-up" if count > 0 else "scale-down"
        return action, *change.key, before, change.now, is_disruptive

    while pending := [change for change in changes if change.missing]:
        has_started = False
        for change in pending:
            fit = change.missing if free is None else free[change.card_type] // change.cards
            if change.missing > 0 and fit > 0:
                has_started = True
                yield step(change, min(fit, change.missing))
        if has_started:
            continue
        waiting = [change for change in pending if change.missing > 0]
        stops = [change for change in pending if change.missing < 0]
        servers, types = {c.key[0] for c in waiting}, {c.card_type for c in waiting}
        if settled := [change for change in stops if change.key[0] not in servers]:
            yield from [step(change, change.missing) for change in settled]
        elif stops:
            victim = ([change for change in stops if change.card_type in types] or stops)[-1]
            yield step(victim, victim.missing, True)
        else:
            yield from [("blocked", *each.key, each.now, each.goal, False) for each in waiting]
            return


def fields_of_steps(one: System) -> list[StepFields]:
    return [
        (s["action"], s["server"], s["accelerator"], s["from"], s["to"], s["disruptive"])
        for s in plan(one, frozenset())["steps"]
    ]


Where = dict[str, int]
"""Replicas by accelerator."""
_some: st.SearchStrategy[Where] = st.dictionaries(
    st.sampled_from("ABC"), st.integers(1, 4), min_size=1
)


def allocation(where: Where) -> dict[str, Any]:
    parts = [{"accelerator": on, "numReplicas": count} for on, count in sorted(where.items())]
    return parts[0] if len(parts) == 1 else {**parts[0], "parts": parts}


@given(
    st.lists(st.tuples(st.sampled_from("mn"), _some, _some), max_size=7),
    SPARE,
    st.booleans(),
)
def test_steps_are_those_of_the_plain_way(
    ways: list[tuple[str, Where, Where]], spare: Where, is_unlimited: bool
) -> None:
    """Systems may have more replicas than cards."""
    servers = [
        server(f"s{i}", model=model, currentAlloc=allocation(now), desiredAlloc=allocation(goal))
        for i, (model, now, goal) in enumerate(ways)
    ]
    data = system_data(servers, capacity=spare, unlimited=is_unlimited)["system"]
    data["modelData"] = {
        "models": [perf(on, name=name, accCount=n) for name, n in MODELS.items() for on in CARDS]
    }
    data["acceleratorData"] = {
        "accelerators": [
            {"name": on, "type": on, "multiplicity": n, "cost": 1.0} for on, n in CARDS.items()
        ]
    }
    one = System.from_spec(read(SystemData, {"system": data}).system)
    changes = [
        Change(f"s{i}", model, on, now.get(on, 0), goal.get(on, 0))
        for i, (model, now, goal) in enumerate(ways)
        for on in sorted(now.keys() | goal.keys())
    ]
    free = dict(spare)
    for change in changes:
        free[change.card_type] -= change.now * change.cards
    assert fields_of_steps(one) == list(plainly(changes, None if is_unlimited else free))
