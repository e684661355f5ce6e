"""The scheduler drafts what pays, and what does not costs next to nothing."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

import pytest

from inference_api.core.drafts import Outcome
from inference_api.core.plan import PlannedStep
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn, RowStep
from inference_api.settings.model import Speculation
from inference_api.speculation.scheduler import DraftScheduler
from tests.inference_api.speculation.rows import rows_of
from tests.inference_api.speculation.simulation import MAX_TOKENS, WRONG, Guesses, Simulation

DRAW = Draw(SamplingParams(), (0,), ())
STEPS: Mapping[str, Callable[[int], float]] = {
    "of memory": lambda tokens: 1 + 0.05 * tokens,  # the weights are read once
    "of arithmetic": lambda tokens: 0.2 + 0.8 * tokens,
    "of a fixed size": lambda tokens: ceil(tokens / 32) + 0.001 * tokens,
}
BAD, GOOD = 0.05, 0.8


def slope(num_rows: int, of_guess: float) -> Callable[[int], float]:
    """A step of a token of each row takes 1 s, and each guess so much longer."""
    return lambda tokens: max(1 + of_guess * (tokens - num_rows), 0.1)


@pytest.mark.parametrize(
    ("chances", "steps", "num_rows"),
    [
        (chances, kind, (1, 12)[(number + other) % 2])
        for number, chances in enumerate([(BAD, BAD), (GOOD, BAD), (BAD, GOOD), (0.5, 0.6)])
        for other, kind in enumerate(STEPS)
    ],
)
def test_it_comes_close_to_the_best_fixed_choice(
    chances: tuple[float, float], steps: str, num_rows: int
) -> None:
    """With a cheap source and a dear one."""
    step_s = STEPS[steps]
    ask_s = 0.02 * step_s(num_rows), 0.2 * step_s(num_rows)
    by_row = [[chance] * num_rows for chance in chances]
    num_turns = {1: 600, 12: 60}[num_rows]
    plain, *fixed, adaptive = (
        Simulation(step_s, by_row, ask_s, fixed=count).run(num_turns).tokens_per_s(num_turns)
        for count in (0, 1, 2, None)
    )
    assert adaptive > 0.94 * max(plain, *fixed)


@pytest.mark.parametrize(("num_rows", "chances"), [(1, (BAD, GOOD)), (8, (GOOD, BAD))])
def test_it_follows_when_guesses_become_better_or_worse(
    num_rows: int, chances: tuple[float, float]
) -> None:
    step_s, ask_s = STEPS["of memory"], [0.3]
    before, after = ([chance] * num_rows for chance in chances)
    simulation = Simulation(step_s, [before], ask_s).run(600)
    simulation.sources[0].chances = after
    best = max(
        Simulation(step_s, [after], ask_s, fixed=count).run(600).tokens_per_s(1000)
        for count in range(2)
    )
    rate = simulation.tokens_per_s(1000)
    assert rate > 0.9 * best


def test_it_draws_back_within_a_few_steps_when_nothing_is_accepted() -> None:
    simulation = Simulation(slope(1, 0.1), [[0.0]]).run(200)
    assert sum(map(len, simulation.lengths[:30])) > 0
    assert sum(map(len, simulation.lengths[40:])) < 0.15 * 160


def test_rows_that_copy_are_drafted_for_and_the_others_are_not() -> None:
    simulation = Simulation(slope(4, 0.08), [[0.95, 0.05, 0.05, 0.05]]).run(300)
    late = simulation.lengths[-100:]
    drafted = [sum(lengths.get(row, 0) for lengths in late) for row in range(4)]
    assert drafted[0] > 100
    assert max(drafted[1:]) < 0.2 * drafted[0]


def test_step_with_prompts_says_nothing_about_costs() -> None:
    adaptive = DraftScheduler([Guesses([0.5])], MAX_TOKENS, 1)
    [row] = rows_of([1, 2, 3])
    before = adaptive.costs.step_s(1)
    prompt, decoded = RowStep(0, 0, [1, 2]), RowStep(0, 2, [3], [DRAW])
    adaptive.learn_turn(PlannedStep(prompts=[(row, prompt)], decoding=[(row, decoded)]), 77.0, 0.0)
    assert adaptive.costs.step_s(1) == before
    adaptive.learn_turn(PlannedStep(decoding=[(row, decoded)]), 77.0, 0.0)
    assert adaptive.costs.step_s(1) == pytest.approx(77.0)


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize(("chance", "of_guess"), [(0.0, 0.1), (0.3, 1.0), (0.95, 2.0)])
def test_source_that_does_not_pay_for_its_time_is_hardly_asked(
    num_rows: int, chance: float, of_guess: float
) -> None:
    simulation = Simulation(slope(num_rows, of_guess), [[chance] * num_rows], [0.3]).run(1500)
    assert simulation.sources[0].times_asked < 0.05 * 1500


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize("hidden_s", [0.2, 0.5])
def test_drafts_that_only_seem_to_pay_are_given_up(num_rows: int, hidden_s: float) -> None:
    step_s = slope(num_rows, 0.45 / num_rows)  # for a guess that is right half the time: a little
    chances = [[0.6] * num_rows]
    plain = Simulation(step_s, chances, fixed=0).tokens_per_s(500)
    adaptive = Simulation(step_s, chances, hidden_s=hidden_s).run(300).tokens_per_s(700)
    assert adaptive > 0.97 * plain


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize("seed", range(2))
def test_drafts_that_were_given_up_are_found_to_pay_soon(num_rows: int, seed: int) -> None:
    step_s = slope(num_rows, 0.45 / num_rows)
    simulation = Simulation(step_s, [[0.6] * num_rows], hidden_s=0.4, seed=seed).run(1000)
    simulation.sources[0].chances = [0.95] * num_rows
    num_turns = 0
    while sum(map(len, simulation.lengths[-20:])) < 18 * num_rows:
        simulation.run(10)
        num_turns += 10
    assert num_turns <= 400


def test_most_turns_without_drafts_need_no_decision() -> None:
    simulation = Simulation(slope(12, 0.45 / 12), [[0.3] * 12], [0.3], hidden_s=0.3).run(1000)
    before = simulation.times_read
    simulation.run(1000)
    assert simulation.times_read - before < 300


def test_source_that_pays_for_its_time_is_asked_in_nearly_every_step() -> None:
    simulation = Simulation(slope(1, 0.05), [[0.8]], [0.3]).run(1000)
    assert simulation.sources[0].times_asked > 0.9 * 1000


def test_rows_are_drafted_for_by_whom_their_requests_name() -> None:
    rows = rows_of([1], [1], [1], [1])
    names: list[Speculation] = ["off", "ngram", "draft", "auto"]
    for row, name in zip(rows, names, strict=True):
        row.request = replace(row.request, params=replace(row.request.params, speculation=name))
    sources = [Guesses([0.0] * 4, "ngram"), Guesses([1.0] * 4, "draft")]
    scheduler = DraftScheduler(sources, 2 * MAX_TOKENS, 4, tries_all=True)
    drafts = scheduler.propose(rows)
    assert {row: len(draft.token_ids) for row, draft in drafts.items()} == {1: 8, 2: 8, 3: 16}
    assert {*drafts[1].token_ids} == {WRONG}
    assert WRONG not in drafts[2].token_ids


def test_each_source_learns_what_became_of_its_own_guesses() -> None:
    [row] = rows_of([1])
    sources = [Guesses([0.0], "ngram"), Guesses([1.0], "draft")]
    scheduler = DraftScheduler(sources, 2 * MAX_TOKENS, 1, tries_all=True)
    for _ in range(20):
        scheduler.propose([row])
        scheduler.learn([Outcome(row, [Drawn(token_id) for token_id in range(MAX_TOKENS)])])
    [wrong, right] = [source.propose([row])[0].likelihoods for source in sources]
    assert wrong[0] < 0.2 < 0.9 < right[0]
