"""A decode loop of scripted costs and chances, with no model and no clock but its own."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import mul

from inference_api.core.drafts import Outcome
from inference_api.core.plan import PlannedStep
from inference_api.core.rows import Draft, UserRow
from inference_api.core.step_costs import StepCosts
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn, RowStep
from inference_api.speculation.calibration import Calibration, ProposedDraft
from inference_api.speculation.scheduler import DraftScheduler
from tests.inference_api.speculation.rows import rows_of

MAX_TOKENS = 8
PLAIN_LOOP = 0.1  # time of a turn outside its step
NOISE = 0.1
INTERRUPTED = 0.003  # share of steps that take
LONGER = 5  # times as long
WRONG = -1
DRAW = Draw(SamplingParams(), (0,), ())


class Guesses:
    """A source that always proposes a chain. A row's next token is the number of tokens it has."""

    wants_hidden = False

    def __init__(
        self,
        chances: Sequence[float],
        name: str = "ngram",
        think: Callable[[], object] = lambda: None,
    ) -> None:
        """`chances`: by row, for each guess to be right; `think` takes the time of guessing."""
        self.name = name
        self.chances = list(chances)
        self.times_asked = 0
        self._think = think
        self._random = random.Random(name)
        self._shares = [0.5] * len(chances)
        self._calibration = Calibration(num_kinds=1)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        self.times_asked += 1
        self._think()
        return self._calibration.drafts(map(self._chain, rows))

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for row, is_right in self._calibration.learn(outcomes):
            self._shares[row.index] += 0.1 * (is_right - self._shares[row.index])

    def _chain(self, row: UserRow) -> ProposedDraft:
        num_tokens, chance = len(row.generated), self.chances[row.index]
        following = range(num_tokens, num_tokens + MAX_TOKENS)
        guesses = [each if self._random.random() < chance else WRONG for each in following]
        own_bin, likelihood = self._calibration.calibrated(0, self._shares[row.index])
        likelihoods = accumulate(repeat(likelihood, MAX_TOKENS), mul)
        draft = Draft(guesses, None, [*likelihoods])
        return ProposedDraft(
            row, draft, [own_bin] * MAX_TOKENS, [self._shares[row.index]] * MAX_TOKENS
        )


class Fixed(DraftScheduler):
    """Always asks the first so many sources."""

    def ask(self, num_sources: int) -> "Fixed":
        self._num_to_ask = num_sources
        return self

    def learn_turn(self, step: PlannedStep, model_s: float, loop_s: float) -> None:
        self.costs.learn_turn(step.contents, model_s, max(loop_s - self._next.propose_s, 0.0))


class Simulation:
    """Rows that never end. Sources are asked in the order of `chances`, each of which says how
    often its guesses are right for each row, and take the time `ask_s`."""

    def __init__(
        self,
        step_s: Callable[[int], float],
        chances: Sequence[Sequence[float]],
        ask_s: Sequence[float] = (0.0, 0.0),
        hidden_s: float = 0.0,
        fixed: int | None = None,
        seed: int = 7,
    ) -> None:
        """`step_s`: seconds by tokens. `hidden_s`: what every turn with drafts takes beyond.
        `fixed`: always ask so many sources."""
        self.sources = [
            Guesses(own, name, partial(self._pass, seconds))
            for own, name, seconds in zip(chances, ("ngram", "medusa"), ask_s, strict=False)
        ]
        self.rows = rows_of(*([[1]] * len(chances[0])), max_tokens=10**6)
        self.step_s, self._hidden_s = step_s, hidden_s
        most = len(self.rows) * (1 + MAX_TOKENS)
        costs = StepCosts({n: step_s(n) for n in range(1, most + 1)}, most, len(self.rows))
        make = DraftScheduler if fixed is None else Fixed
        self.scheduler = make(
            self.sources, MAX_TOKENS, len(self.rows), clock=self._read_clock, costs=costs
        )
        if isinstance(self.scheduler, Fixed):
            self.scheduler.ask(fixed or 0)
        self._random = random.Random(seed)
        self._drafts: Mapping[int, Draft] = {}
        self.elapsed_s = 0.0
        self.times_read = 0
        self.lengths: list[Mapping[int, int]] = []  # each step's guesses, by row

    def run(self, num_turns: int) -> "Simulation":
        for _ in range(num_turns):
            self._turn()
        return self

    def tokens_per_s(self, num_turns: int) -> float:
        """Over the next turns."""
        started_s, num_tokens = self.elapsed_s, self._num_tokens
        self.run(num_turns)
        return (self._num_tokens - num_tokens) / (self.elapsed_s - started_s)

    @property
    def _num_tokens(self) -> int:
        return sum(len(row.generated) for row in self.rows)

    def _turn(self) -> None:
        drafts, step = self._drafts, PlannedStep()
        for row in self.rows:
            token_ids = drafts.get(row.index, Draft()).token_ids
            step.decoding.append((row, RowStep(row.index, 0, [1, *token_ids], [DRAW])))
            following = range(len(row.generated), len(row.generated) + len(token_ids) + 1)
            num_right = [*token_ids, WRONG].index(WRONG)
            drawn = [Drawn(token_id) for token_id in following[: num_right + 1]]
            row.generated += [each.token_id for each in drawn]
            step.outcomes.append(Outcome(row, drawn))
        model_s = self._pass(
            self.step_s(step.contents.tokens)
            * self._random.uniform(1 - NOISE, 1 + NOISE)
            * (LONGER if self._random.random() < INTERRUPTED else 1)
        )
        looped_s = self.elapsed_s
        self.scheduler.learn(step.outcomes)
        self._drafts = self.scheduler.propose(self.rows)
        self._pass(PLAIN_LOOP + (self._hidden_s if drafts else 0.0))
        self.scheduler.learn_turn(step, model_s, self.elapsed_s - looped_s)
        self.lengths.append({row: len(each.token_ids) for row, each in drafts.items()})

    def _pass(self, seconds: float) -> float:
        self.elapsed_s += seconds
        return seconds

    def _read_clock(self) -> float:
        self.times_read += 1
        return self.elapsed_s
