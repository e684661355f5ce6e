"""How much of what a source proposes is worth trying, for every row and step."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from inference_api.engine.runner import ModelRunner
from inference_api.scheduling.rows import Draft, UserRow
from inference_api.scheduling.speculation.acceptance import AcceptanceRates
from inference_api.scheduling.speculation.drafts import DraftSource, RowStates
from inference_api.scheduling.step_costs import StepCosts
from inference_api.scheduling.step_plan import Step

MIN_GAIN = 1.03  # below it the costs are not known well enough
MEMORY = 0.85  # what a row's last draft counts when there is another
MEMORY_OF_ALL = 0.99
EXPLORED_SHARE = 0.01  # of the time of steps, for drafts that are not expected to pay
LEAST_LIKELY = 0.02  # guesses below it are not looked at

Guess = tuple[float, int]  # expected tokens and the row


class AdaptiveDrafts:
    """A `DraftSource` over another one of chains. Decode thread only.

    Of all rows' guesses it takes the likeliest ones, as many as make the expected tokens per second
    of the whole step highest: t(tokens) is measured, and so is acceptance, by row and depth. A
    small share of the time goes to drafts that it takes for a loss, lest it be wrong for ever.
    """

    def __init__(self, source: DraftSource, max_tokens: int, max_rows: int) -> None:
        """`max_tokens`: of one draft."""
        self._source = source
        self._most_tokens = max_rows * (1 + max_tokens)
        # Until costs are measured each token counts the same, so that no draft pays.
        self.costs = StepCosts({1: 1.0}, self._most_tokens)
        self._rates = AcceptanceRates(MEMORY_OF_ALL)
        self._rates_of = RowStates(lambda row: AcceptanceRates(MEMORY, self._rates))
        self._tried: dict[int, tuple[AcceptanceRates, int]] = {}  # and the strength, by row
        self._num_steps = 0
        self._last_tried: dict[int, int] = {}  # the step, by row
        self._explored_s = 0.0  # time that may be lost by exploring

    def warm_up(self, runner: ModelRunner) -> None:
        """Measure what steps cost."""
        self.costs = StepCosts.measured(runner, self._most_tokens)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        drafts = self._source.propose(rows)
        rates = dict(zip([row.index for row in rows], self._rates_of.of(rows), strict=True))
        self._tried = {}
        if not drafts:
            return drafts
        guesses = self._guesses(drafts, rates)
        num_taken = self._num_worth_trying(len(rows), guesses)
        lengths = Counter(row for _, row in guesses[:num_taken])
        lengths.update(self._explored(len(rows) + num_taken, drafts.keys() - lengths.keys()))
        self._num_steps += 1
        for row in lengths:
            self._tried[row] = rates[row], drafts[row].strength
            self._last_tried[row] = self._num_steps
        return {
            row: drafts[row]._replace(token_ids=drafts[row].token_ids[:length])
            for row, length in lengths.items()
        }

    def learn(self, step: Step, seconds: float) -> None:
        """What became of a step, and how long it took."""
        if not step.prompts:
            num_tokens = sum([len(each.token_ids) for _, each in step.decoding])
            self.costs.learn(num_tokens, seconds)
        for row_step, accepted in step.kept:
            if tried := self._tried.get(row_step.row):
                rates, strength = tried
                rates.learn(strength, len(row_step.token_ids) - 1, len(accepted) - 1)

    def _guesses(
        self, drafts: Mapping[int, Draft], rates: Mapping[int, AcceptanceRates]
    ) -> list[Guess]:
        """All rows' guesses, the likeliest first; of a row, in their order."""
        guesses: list[Guess] = []
        for row, draft in drafts.items():
            likelihood, later = rates[row].likelihoods(draft.strength)
            for _ in draft.token_ids:
                if likelihood < LEAST_LIKELY:
                    break
                guesses.append((likelihood, row))
                likelihood *= later
        guesses.sort(reverse=True)
        return guesses

    def _num_worth_trying(self, num_rows: int, guesses: Sequence[Guess]) -> int:
        seconds = self.costs.of
        best, best_rate = 0, MIN_GAIN * num_rows / seconds(num_rows)
        expected_tokens = float(num_rows)
        for number, (likelihood, _) in enumerate(guesses, 1):
            expected_tokens += likelihood
            rate = expected_tokens / seconds(num_rows + number)
            if rate > best_rate:
                best, best_rate = number, rate
        return best

    def _explored(self, num_tokens: int, rows: Collection[int]) -> list[int]:
        """The one of `rows` whose drafts were not tried for longest, when there is time for it."""
        if not rows:
            return []
        step_s = self.costs.of(num_tokens)
        loss_s = self.costs.of(num_tokens + 1) - step_s
        self._explored_s = min(self._explored_s + EXPLORED_SHARE * step_s, loss_s)
        if self._explored_s < loss_s:
            return []
        self._explored_s = 0.0
        return [min(rows, key=lambda row: self._last_tried.get(row, 0))]
