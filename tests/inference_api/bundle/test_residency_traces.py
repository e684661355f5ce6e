"""Random days of a bundle: whatever comes, nobody is lost and nobody waits longer than the bound.

`simulated_bundle` checks memory, rows and victims after every turn.
"""

import contextlib
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_api.bundle.members import Failure, Needs, Policy, UnloadMode
from inference_api.errors import UnloadRefused
from tests.inference_api.bundle.simulated_bundle import LoadOutcome, SimulatedBundle

TURNS = 250
DAYS = max(10, settings.default.max_examples // 2 if settings.default else 0)  # see conftest
SLOT_BYTES = 100
randoms = st.integers(0, 2**32 - 1).map(Random)


def random_bundle(random: Random) -> SimulatedBundle:
    user_rows = random.randint(8, 32)
    names = "abcdefgh"[: random.randint(2, 8)]
    needs = {name: random_needs(random, user_rows // len(names)) for name in names}
    totals = [needed_bytes(each) for each in needs.values()]
    pinned = sum(needed_bytes(each) for each in needs.values() if each.is_pinned)
    least = pinned + max(totals)
    limit = random.randint(least, max(least, sum(totals)))
    policy = Policy(
        fast_memory_limit_bytes=limit,
        user_rows=user_rows,
        patience_s=random.choice([0, 1, 5, 10]),
        min_residence_s=random.choice([0, 1, 2, 8]),
        load_timeout_s=60,
    )
    simulated = SimulatedBundle(needs, policy)
    for name in names:
        simulated.load_s[name] = random.choice([0, 0.5, 1, 3])
    return simulated


def random_needs(random: Random, most_rows_min: int) -> Needs:
    rows_min = random.randint(1, most_rows_min)
    is_shared = random.random() < 0.2
    row_bytes = random.randint(0, 5)
    return Needs(
        weights_bytes=50 if is_shared else random.randint(10, 100),
        other_bytes=random.randint(0, 10),
        guaranteed_bytes=rows_min * row_bytes,
        row_bytes=row_bytes,
        rows_min=rows_min,
        rows_max=random.randint(rows_min, 32),
        is_pinned=random.random() < 0.15,
        shared={"shared": 50} if is_shared else {},
    )


def needed_bytes(needs: Needs) -> int:
    return needs.weights_bytes + needs.other_bytes + needs.guaranteed_bytes


def live(random: Random, simulated: SimulatedBundle) -> None:
    """One turn: requests come, in bursts, and some clients leave."""
    names = list(simulated.needs)
    rate = random.choice([0.02, 0.3, 1.0])
    if random.random() < rate:
        for _ in range(random.choice([1, 1, 1, 2, 12])):
            simulated.ask(random.choice(names), run_s=random.choice([0, 0.5, 2, 10]))
    if random.random() < 0.05 and simulated.requests:
        simulated.cancel(random.choice(simulated.requests[-30:]))
    simulated.turn()


def end_day(simulated: SimulatedBundle) -> None:
    for _ in range(100_000):
        if not simulated.waiting() and not simulated.running:
            break
        simulated.turn()
    simulated.run(10)


@settings(max_examples=DAYS, deadline=None)
@given(random=randoms)
def test_nobody_waits_longer_than_the_bound(random: Random) -> None:
    simulated = random_bundle(random)
    for _ in range(TURNS):
        live(random, simulated)
    end_day(simulated)
    simulated.check_all_ended()
    for request in simulated.requests:
        if request.end == "done":
            simulated.check_bound(request)


@settings(max_examples=DAYS, deadline=None)
@given(random=randoms)
def test_one_member_under_constant_load_starves_nobody(random: Random) -> None:
    simulated = random_bundle(random)
    names = list(simulated.needs)
    for turn in range(TURNS):
        simulated.ask(names[0], run_s=random.choice([1, 5]))
        if turn % 20 == 0:
            simulated.ask(random.choice(names[1:]))
        simulated.turn()
    end_day(simulated)
    simulated.check_all_ended()
    for request in simulated.requests:
        simulated.check_bound(request)


@settings(max_examples=DAYS, deadline=None)
@given(random=randoms)
def test_nobody_is_lost_whatever_fails_and_operators_ask(random: Random) -> None:
    simulated = random_bundle(random)
    residency, names = simulated.residency, list(simulated.needs)
    for _ in range(TURNS):
        name = random.choice(names)
        chance = random.random()
        if chance < 0.03:
            failure = random.choice([None, Failure.LOAD, Failure.MEMORY])
            took_s = random.choice([0.0, 1.0, 5.0, 70.0])  # the last is too long
            simulated.outcomes[name].append(LoadOutcome(took_s, failure))
        elif chance < 0.06:
            residency.ask_load(name, simulated.now_s)
        elif chance < 0.10:
            with contextlib.suppress(UnloadRefused):
                residency.ask_unload(name, random.choice(list(UnloadMode)), simulated.now_s)
        elif chance < 0.13:
            residency.source_changed(name)
        live(random, simulated)
    end_day(simulated)
    simulated.check_all_ended()


@settings(max_examples=DAYS // 2, deadline=None)
@given(random=randoms)
def test_members_as_large_as_a_slot_always_find_one(random: Random) -> None:
    """As on CUDA, whose loader takes a slot for a load and gives it back after an unload."""
    num_slots, names = random.randint(1, 4), "abcdefgh"[: random.randint(4, 8)]
    needs = {name: needs_of_slot(random, is_pinned=False) for name in names}
    needs |= {name: needs_of_slot(random, is_pinned=True) for name in names[: num_slots - 1]}
    spare = random.randrange(SLOT_BYTES)
    policy = Policy(
        fast_memory_limit_bytes=num_slots * SLOT_BYTES + spare,
        user_rows=16,
        patience_s=random.choice([0, 1, 5]),
        min_residence_s=random.choice([0, 1]),
        load_timeout_s=60,
    )
    simulated, taken = SimulatedBundle(needs, policy), 0
    for _ in range(TURNS):
        live(random, simulated)
        assert len(simulated._holds) <= num_slots
        taken = max(taken, len(simulated._holds))
    end_day(simulated)
    simulated.check_all_ended()
    assert taken == num_slots


def needs_of_slot(random: Random, is_pinned: bool) -> Needs:
    weights_bytes, cache_bytes = random.randint(1, 60), random.randint(1, 40)
    return Needs(
        weights_bytes=weights_bytes,
        other_bytes=SLOT_BYTES - weights_bytes - cache_bytes,
        guaranteed_bytes=cache_bytes,
        row_bytes=0,
        rows_min=1,
        rows_max=random.randint(1, 8),
        is_pinned=is_pinned,
    )
