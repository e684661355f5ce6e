"""The scheduler drafts what pays, and what does not costs next to nothing."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from inference_api.core.drafts import Outcome
from inference_api.core.plan import PlannedStep
from inference_api.core.rows import Draft, UserRow
from inference_api.core.step_costs import StepCosts
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from inference_api.settings.model import Speculation
from inference_api.speculation.acceptance import AcceptanceRates
from inference_api.speculation.paces import Paces
from inference_api.speculation.scheduler import DraftScheduler
from inference_api.speculation.source_choice import ASKED_SHARE, SourceChoice
from tests.inference_api.speculation.rows import rows_of

MAX_TOKENS = 8
DRAW = Draw(SamplingParams(), (0,), ())


class Guesses:
    """A source that always has something to say, and learns how often it is right."""

    wants_hidden = False

    def __init__(
        self, name: str = "ngram", token_id: int = 5, think: Callable[[], None] = lambda: None
    ) -> None:
        """`think` takes the time that guessing takes."""
        self.name = name
        self.token_id = token_id
        self.times_asked = 0
        self._think = think
        of_all = AcceptanceRates(0.99)
        self._rates = [AcceptanceRates(0.85, of_all) for _ in range(32)]

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        self.times_asked += 1
        self._think()
        drafts = {}
        for row in rows:
            first, later = self._rates[row.index].likelihoods(3)
            likelihoods = [first * later**depth for depth in range(MAX_TOKENS)]
            drafts[row.index] = Draft([self.token_id] * MAX_TOKENS, None, likelihoods)
        return drafts

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for row, tried, accepted, _ in outcomes:
            if tried:
                self._rates[row.index].learn(3, len(tried), len(accepted))


class Simulation:
    """Rows whose drafts are right with a likelihood of their own, and steps of known costs.

    A step takes 1 s, and `slope` more for each token beyond one of each row: what is free at one
    row may not be at many. `hidden_s`: what every step with drafts takes beyond what is known.
    """

    def __init__(
        self,
        likelihoods: Sequence[float],
        slope: float,
        ask_s: float = 0.0,
        hidden_s: float = 0.0,
        seed: int = 7,
    ) -> None:
        self.rows = rows_of(*([[1]] * len(likelihoods)))
        self.likelihoods = list(likelihoods)
        num_rows = len(self.rows)
        self._ask_s, self._hidden_s = ask_s, hidden_s
        self.source = Guesses(think=self._think)
        self.adaptive = DraftScheduler([self.source], MAX_TOKENS, num_rows, clock=self._read_clock)
        self._costs = [1.0 + slope * (n - num_rows) for n in range(num_rows * (1 + MAX_TOKENS) + 1)]
        known = dict(enumerate(self._costs[num_rows:], num_rows))
        self.adaptive.costs = StepCosts(known, len(self._costs) - 1)
        self._random = random.Random(seed)
        self.elapsed_s = 0.0
        self.times_read = 0
        self.num_tokens = 0
        self.lengths: list[Mapping[int, int]] = []

    def step(self, times: int) -> "Simulation":
        for _ in range(times):
            drafts = self.adaptive.propose(self.rows)
            step = PlannedStep()
            for row in self.rows:
                draft = drafts.get(row.index, Draft())
                taken = RowStep(row.index, 0, [1, *draft.token_ids], [DRAW])
                step.decoding.append((row, taken))
                num_accepted = 0
                while num_accepted < len(draft.token_ids) and self._is_right(row.index):
                    num_accepted += 1
                tried = range(len(draft.token_ids))
                step.outcomes.append(Outcome(row, tried, range(num_accepted)))
                self.num_tokens += 1 + num_accepted
            seconds = self._costs[sum(len(each.token_ids) for _, each in step.decoding)]
            seconds *= self._random.uniform(0.9, 1.1)
            loop_s = self._hidden_s if drafts else 0.0
            self.adaptive.learn(step.outcomes)
            self.adaptive.took(step, seconds, loop_s)
            self.elapsed_s += seconds + loop_s
            self.lengths.append({row: len(each.token_ids) for row, each in drafts.items()})
        return self

    def _read_clock(self) -> float:
        self.times_read += 1
        return self.elapsed_s

    def _think(self) -> None:
        self.elapsed_s += self._ask_s

    def _is_right(self, row: int) -> bool:
        return self._random.random() < self.likelihoods[row]

    @property
    def speedup(self) -> float:
        """Tokens per second beside those of single steps."""
        return self.num_tokens / self.elapsed_s / len(self.rows)


def best_speedup(likelihood: float, slope: float, num_rows: int) -> float:
    """Of chains of one length."""

    def speedup(length: int) -> float:
        tokens = sum(likelihood**depth for depth in range(length + 1))
        return tokens / (1 + slope * num_rows * length)

    return max(map(speedup, range(MAX_TOKENS + 1)))


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize("slope", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("likelihood", [0.0, 0.3, 0.6, 0.95])
def test_it_comes_close_to_the_best_length_and_is_never_slower_than_off(
    num_rows: int, slope: float, likelihood: float
) -> None:
    simulation = Simulation([likelihood] * num_rows, slope).step(400)
    assert simulation.speedup > 0.97
    assert simulation.speedup > 0.9 * best_speedup(likelihood, slope, num_rows)


def test_it_draws_back_within_a_few_steps_when_nothing_is_accepted() -> None:
    simulation = Simulation([0.0], slope=0.1).step(200)
    assert sum(map(len, simulation.lengths[:10])) > 0
    assert sum(map(len, simulation.lengths[20:])) < 0.15 * 180


def test_it_comes_back_when_drafts_are_right_again() -> None:
    simulation = Simulation([0.0], slope=0.1).step(200)
    simulation.likelihoods = [0.95]
    simulation.step(200)
    assert sum(lengths.get(0, 0) for lengths in simulation.lengths[-20:]) > 20 * 4


def test_rows_that_copy_are_drafted_for_and_the_others_are_not() -> None:
    simulation = Simulation([0.95, 0.05, 0.05, 0.05], slope=0.08).step(300)
    late = simulation.lengths[-100:]
    drafted = [sum(lengths.get(row, 0) for lengths in late) for row in range(4)]
    assert drafted[0] > 100
    assert max(drafted[1:]) < 0.2 * drafted[0]


def test_without_measured_costs_nothing_is_drafted_but_to_explore() -> None:
    adaptive = DraftScheduler([Guesses()], MAX_TOKENS, 1)
    [row] = rows_of([1])
    tried = sum(len(adaptive.propose([row])) for _ in range(1000))
    assert 0 < tried <= 11


def test_step_with_prompts_says_nothing_about_costs() -> None:
    adaptive = DraftScheduler([Guesses()], MAX_TOKENS, 1)
    [row] = rows_of([1, 2, 3])
    before = adaptive.costs.of(1)
    prompt, decoded = RowStep(0, 0, [1, 2]), RowStep(0, 2, [3], [DRAW])
    adaptive.took(PlannedStep(prompts=[(row, prompt)], decoding=[(row, decoded)]), 77.0, 0.0)
    assert adaptive.costs.of(1) == before
    adaptive.took(PlannedStep(decoding=[(row, decoded)]), 77.0, 0.0)
    assert adaptive.costs.of(1) == pytest.approx(77.0)


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize(("likelihood", "slope"), [(0.0, 0.1), (0.3, 1.0), (0.95, 2.0)])
def test_source_that_does_not_pay_for_its_time_is_hardly_asked(
    num_rows: int, likelihood: float, slope: float
) -> None:
    simulation = Simulation([likelihood] * num_rows, slope, ask_s=0.3).step(1000)
    assert simulation.source.times_asked < 0.05 * 1000
    assert simulation.speedup > 0.97


@pytest.mark.parametrize("num_rows", [1, 12])
@pytest.mark.parametrize("hidden_s", [0.15, 0.5])
def test_drafts_that_only_seem_to_pay_are_given_up(num_rows: int, hidden_s: float) -> None:
    slope = 0.45 / num_rows  # for a guess that is right half the time: a little gained
    simulation = Simulation([0.6] * num_rows, slope, hidden_s=hidden_s).step(3000)
    assert simulation.speedup > 0.98


@pytest.mark.parametrize(
    ("num_rows", "seed"), [(1, 7), *[(rows, seed) for rows in (4, 12) for seed in range(7)]]
)
def test_drafts_that_were_given_up_are_found_to_pay_soon(num_rows: int, seed: int) -> None:
    likelihoods, slope = [0.6] * num_rows, 0.45 / num_rows
    simulation = Simulation(likelihoods, slope, hidden_s=0.3, seed=seed).step(3000)
    simulation.likelihoods = [0.95] * num_rows
    num_turns = 0
    while sum(map(len, simulation.lengths[-20:])) < 20 * num_rows:
        simulation.step(10)
        num_turns += 10
    assert num_turns <= 400


@pytest.mark.parametrize(("ask_s", "hidden_s"), [(0.3, 0.0), (0.0, 0.5), (0.1, 0.3)])
def test_most_turns_without_drafts_need_no_decision(ask_s: float, hidden_s: float) -> None:
    simulation = Simulation([0.6] * 12, 0.45 / 12, ask_s, hidden_s).step(2000)
    before = simulation.times_read
    simulation.step(2000)
    assert simulation.times_read - before < 2000  # a decision reads it twice


@pytest.mark.parametrize("passes", [True, False])
def test_turns_that_are_let_pass_are_paid_for_once(passes: bool) -> None:
    """Also when another number of rows decides in between, so that none is passed."""
    choice, asked = SourceChoice(["ngram"]), 0
    for _ in range(2):
        choice.payoffs["ngram"].learn(saved_s=0.0, ask_s=0.5)
    for _ in range(10_000):
        if not (passes and choice.passes()):
            asked += len(choice.next(num_rows=12, step_s=1.0).names)
    assert asked * 0.5 == pytest.approx(ASKED_SHARE * 10_000, rel=0.05)


def test_a_turn_that_was_held_up_decides_nothing() -> None:
    for held_up_is_drafting in (False, True):
        paces = Paces()
        paces.learn(held_up_is_drafting, 1000.0, 1.0)
        for _ in range(50):
            paces.learn(True, 1.6, 2.0)
            paces.learn(False, 1.0, 1.0)
        assert paces.prefers_drafts
        for _ in range(200):
            paces.learn(True, 2.1, 2.0)
            paces.learn(False, 1.0, 1.0)
        assert not paces.prefers_drafts


def test_source_that_pays_for_its_time_is_asked_in_nearly_every_step() -> None:
    simulation = Simulation([0.8], slope=0.05, ask_s=0.3).step(300)
    assert simulation.source.times_asked > 0.95 * 300
    assert simulation.speedup > 0.9 * best_speedup(0.8, 0.05, 1) / 1.3


def test_source_that_begins_to_pay_is_found() -> None:
    simulation = Simulation([0.0], slope=0.1, ask_s=0.1).step(300)
    simulation.likelihoods = [0.95]
    simulation.step(1500)
    late = simulation.lengths[-100:]
    assert sum(lengths.get(0, 0) for lengths in late) > 100 * 4


def test_rows_are_drafted_for_by_whom_their_requests_name() -> None:
    rows = rows_of([1], [1], [1], [1])
    names: list[Speculation] = ["off", "ngram", "draft", "auto"]
    for row, name in zip(rows, names, strict=True):
        row.request = replace(row.request, speculation=name)
    sources = [Guesses("ngram", 5), Guesses("draft", 6)]
    scheduler = DraftScheduler(sources, MAX_TOKENS, 4, tries_all=True)
    firsts = {row: set(draft.token_ids) for row, draft in scheduler.propose(rows).items()}
    assert firsts == {1: {5}, 2: {6}, 3: {5, 6}}


def test_each_source_learns_what_became_of_its_own_guesses() -> None:
    [row] = rows_of([1])
    sources = [Guesses("ngram", 5), Guesses("draft", 6)]
    scheduler = DraftScheduler(sources, 2 * MAX_TOKENS, 1, tries_all=True)
    for _ in range(20):
        draft = scheduler.propose([row])[0]
        sixes = [at for at, token_id in enumerate(draft.token_ids) if token_id == 6]
        scheduler.learn([Outcome(row, range(len(draft.token_ids)), sixes)])
    [fives, sixes_then] = [source.propose([row])[0].likelihoods for source in sources]
    assert fives[0] < 0.1 < 0.9 < sixes_then[0]
