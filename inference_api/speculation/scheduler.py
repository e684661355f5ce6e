"""Chooses for every row and step which proposed tokens are worth verifying."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter

from inference_api.core.drafts import DraftSource, Outcome
from inference_api.core.plan import PlannedStep
from inference_api.core.rows import Draft, UserRow
from inference_api.core.step_costs import Contents, StepCosts
from inference_api.speculation.merging import Merged, merged
from inference_api.speculation.source_choice import Payoff, SourceChoice

MIN_GAIN = 1.03  # below it the costs are not known well enough
EXPLORED_SHARE = 0.003  # share of step time for drafts that are not expected to pay
MAX_ASK_TURNS = 4.0  # turns that asking counts for at most; what took longer was held up


@dataclass(slots=True)
class _Asked:
    """A source's drafts for this step, and how long they took."""

    drafts: Mapping[int, Draft]
    payoff: Payoff
    ask_s: float


@dataclass(slots=True)
class _Turn:
    """What one step was offered and has of it."""

    # True counts the turn for the pace with drafts, False for the one without, None for neither.
    is_drafting: bool | None = None
    asked: Mapping[str, _Asked] = field(default_factory=dict)
    merged: Mapping[int, Merged] = field(default_factory=dict)  # drafts, by row
    num_tried: Mapping[int, int] = field(default_factory=dict)  # guesses to try, by row
    num_drawn: int = 0  # tokens, by all rows
    propose_s: float = 0.0  # time to ask for guesses and to choose of them


RESTING = _Turn()  # nobody was asked, and there is nothing to learn


class DraftScheduler:
    """Combines a model's draft sources. Decode thread only.

    Takes, over all rows, the guesses that raise expected tokens per second most; t(tokens) is
    measured at warm-up and in every step. A row gets nothing, a chain or a tree. A source is asked
    while that saves more time than it takes. A small share of the time tries options that seem to
    lose, in case that has changed. Measured time decides whether drafts are faster than none; see
    `SourceChoice` and `Paces`. Between decisions turns pass without one: a decision takes a few
    percent of a small model's step.
    """

    name = "auto"

    def __init__(
        self,
        sources: Sequence[DraftSource],
        max_tokens: int,
        max_rows: int,
        tries_all: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        costs: StepCosts | None = None,
    ) -> None:
        """`sources`: fastest first. `max_tokens`: most tokens of one row's draft. `tries_all`:
        verify everything that is proposed, whether it pays or not, for comparisons. `costs`: the
        known times of the model's steps."""
        self.sources = tuple(sources)
        self._to_ask: Sequence[DraftSource] = self.sources  # after the next step
        self._max_tokens = max_tokens
        self._tries_all = tries_all
        self._clock = clock
        # Until costs are known each token counts the same, so that no draft pays.
        self.costs = costs or StepCosts({}, max_rows * (1 + max_tokens), max_rows)
        self._overhead_s = 0.0  # time of a turn outside its step
        names = [source.name for source in self.sources]
        num_places = max_rows.bit_length() + 1  # for about so many rows
        self._choices = [SourceChoice(names) for _ in range(num_places)]
        self._is_drafting: bool | None = True  # after the next step
        self._turn = RESTING
        self._stepped = RESTING  # the turn whose step was made last
        self._num_steps = 0
        self._last_tried: dict[int, int] = {}  # the step, by row
        self._explored_s = 0.0  # time that may be lost by exploring

    @property
    def wants_hidden(self) -> bool:
        """Whether a source that will be asked after the next step needs its hidden states."""
        return bool(self._to_ask) and any(source.wants_hidden for source in self._to_ask)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        if not rows:
            return {}
        if not self._to_ask and self._choice(len(rows)).passes():
            self._turn = RESTING
            return {}
        self._overhead_s = self.costs.loop_s(len(rows))
        started_s = self._clock()
        drafts = self._proposed(rows)
        self._turn.propose_s = self._since(started_s, len(rows))
        return drafts

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Tell each source the results of its own guesses, and learn how much they saved."""
        turn = self._turn
        if turn is RESTING and not self._to_ask:
            self._stepped = turn
            return
        started_s = self._clock()
        turn.num_drawn = len(outcomes)
        for source in self.sources if turn.asked else self._to_ask:
            asked = turn.asked.get(source.name)
            drafts = {} if asked is None else asked.drafts
            if drafts or (source.wants_hidden and source in self._to_ask):
                source.learn([self._own(source.name, drafts, each) for each in outcomes])
        if turn.asked:
            turn.num_drawn += sum([len(each.accepted) for each in outcomes])
            turn.num_tried = {each.row.index: len(each.tried) for each in outcomes if each.tried}
            self._learn_payoffs(turn, len(outcomes), self._since(started_s, len(outcomes)))
        self._stepped, self._turn = turn, RESTING  # nothing more is to be learned of it

    def took(self, step: PlannedStep, model_s: float, loop_s: float) -> None:
        """How long a turn took, inside the model and outside."""
        contents, loop_s = step.contents, max(loop_s - self._turn.propose_s, 0.0)
        self._learn_pace(contents, model_s + loop_s)
        self.costs.took(contents, model_s, loop_s)

    def _proposed(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        self._turn = turn = _Turn(self._is_drafting, asked := self._asked(rows))
        if not self._tries_all:
            self._choose(len(rows))
        if not asked:
            return {}
        turn.merged = self._merged(asked)
        if turn.merged:
            turn.num_tried = self._num_worth_trying(len(rows), turn.merged)
        untried = turn.merged.keys() - turn.num_tried.keys()
        if untried:
            num_tokens = len(rows) + sum(turn.num_tried.values())
            turn.num_tried = {**turn.num_tried, **self._explored(num_tokens, untried)}
        self._num_steps += 1
        for row in turn.num_tried:
            self._last_tried[row] = self._num_steps
        return {row: turn.merged[row].draft.first(count) for row, count in turn.num_tried.items()}

    def _asked(self, rows: Sequence[UserRow]) -> dict[str, _Asked]:
        """The drafts of the sources to ask, of the rows that want them."""
        asked, payoffs = {}, self._choice(len(rows)).payoffs
        for source in self._to_ask:
            wanted = [row for row in rows if row.request.speculation in ("auto", source.name)]
            if wanted:
                started_s = self._clock()
                drafts = source.propose(wanted)
                ask_s = self._since(started_s, len(rows))
                asked[source.name] = _Asked(drafts, payoffs[source.name], ask_s)
        return asked

    def _choose(self, num_rows: int) -> None:
        """Whom to ask after the next step: settled before it, since some need its states."""
        step_s = self._seconds(num_rows)
        names, self._is_drafting, rest_turns = self._choice(num_rows).next(num_rows, step_s)
        self._to_ask = [source for source in self.sources if source.name in names]
        self._explored_s += rest_turns * EXPLORED_SHARE * step_s

    def _learn_pace(self, contents: Contents, seconds: float) -> None:
        """What a turn took without the time to guess for it, which was at the end of another."""
        turn, rows = self._stepped, contents.rows
        if turn.is_drafting is None or not rows:
            return
        plain_s, brought = self._seconds(rows), turn.num_drawn / rows
        if contents.prompt_tokens:
            prompt_s = contents.prompt_tokens * (self.costs.prompt_token_s(rows) or 0.0)
            brought += prompt_s / plain_s
        relative_s = (seconds + turn.propose_s) / plain_s
        self._choice(rows).paces.learn(turn.is_drafting, relative_s, brought)

    def _choice(self, num_rows: int) -> SourceChoice:
        return self._choices[num_rows.bit_length()]

    def _merged(self, asked: Mapping[str, _Asked]) -> Mapping[int, Merged]:
        """What there is for each row, of at most `max_tokens` guesses."""
        by_row: dict[int, list[Draft]] = {}
        for each in asked.values():
            for row in each.drafts:
                by_row.setdefault(row, [])
        for row, drafts in by_row.items():
            drafts += [each.drafts.get(row, Draft()) for each in asked.values()]
        return {row: merged(drafts) for row, drafts in by_row.items()}

    def _since(self, started_s: float, num_rows: int) -> float:
        """Seconds, as far as they may be due to drafts."""
        return min(self._clock() - started_s, MAX_ASK_TURNS * self._seconds(num_rows))

    def _seconds(self, num_tokens: int) -> float:
        """Returns the expected time of a turn whose step has so many tokens."""
        return self.costs.of(num_tokens) + self._overhead_s

    def _num_worth_trying(self, num_rows: int, offered: Mapping[int, Merged]) -> Mapping[int, int]:
        """Returns, by row, how many of its first guesses are worth their time."""
        likelihoods = {
            row: each.draft.likelihoods[: self._max_tokens] for row, each in offered.items()
        }
        if self._tries_all:
            return {row: len(own) for row, own in likelihoods.items() if own}
        guesses = [(each, row) for row, own in likelihoods.items() for each in own]
        guesses.sort(key=itemgetter(0), reverse=True)
        seconds = self.costs.up_to(num_rows, len(guesses)).tolist()
        best, best_rate = 0, MIN_GAIN * num_rows / (seconds[0] + self._overhead_s)
        expected_tokens = float(num_rows)
        for number, (likelihood, _) in enumerate(guesses, 1):
            expected_tokens += likelihood
            rate = expected_tokens / (seconds[number] + self._overhead_s)
            if rate > best_rate:
                best, best_rate = number, rate
        return Counter([row for _, row in guesses[:best]])

    def _learn_payoffs(self, turn: _Turn, num_rows: int, learn_s: float) -> None:
        """What this step is expected to save by the guesses that only one source has, or that it
        has first: time of plain steps for as many tokens, less what it takes to try them, and less
        the time to ask, with an equal part of that to choose and to learn."""
        ask_s = sum([each.ask_s for each in turn.asked.values()])
        part_s = (turn.propose_s - ask_s + learn_s) / len(turn.asked)
        num_tokens = num_rows + sum(turn.num_tried.values())
        plain_s = self._seconds(num_rows) / num_rows if num_rows else 0.0
        for number, each in enumerate(turn.asked.values()):
            expected_tokens, num_own = 0.0, 0
            for row, count in turn.num_tried.items():
                draft, owners, _ = turn.merged[row]
                for likelihood, owner in zip(draft.likelihoods[:count], owners, strict=False):
                    if owner == number:
                        expected_tokens += likelihood
                        num_own += 1
            trying_s = self.costs.of(num_tokens) - self.costs.of(num_tokens - num_own)
            each.payoff.learn(expected_tokens * plain_s - trying_s, each.ask_s + part_s)

    def _own(self, name: str, drafts: Mapping[int, Draft], outcome: Outcome) -> Outcome:
        """An outcome in the numbers of one source's own draft."""
        row, turn = outcome.row.index, self._turn
        if not outcome.tried or row not in drafts:
            return Outcome(outcome.row, (), (), outcome.hidden)
        places = turn.merged[row].places[list(turn.asked).index(name)]
        tried, accepted = len(outcome.tried), set(outcome.accepted)
        return Outcome(
            outcome.row,
            [own for own, place in enumerate(places) if place < tried],
            [own for own, place in enumerate(places) if place in accepted],
            outcome.hidden,
        )

    def _explored(self, num_tokens: int, rows: Collection[int]) -> Mapping[int, int]:
        """A guess for those of `rows` whose drafts were not tried for longest, as many as there is
        time for."""
        step_s = self.costs.of(num_tokens)
        loss_s = self.costs.of(num_tokens + 1) - step_s
        self._explored_s += EXPLORED_SHARE * step_s
        most = len(rows) if loss_s <= 0.0 else min(int(self._explored_s / loss_s), len(rows))
        self._explored_s = min(self._explored_s, len(rows) * loss_s) - most * loss_s
        return dict.fromkeys(nsmallest(most, rows, key=lambda row: self._last_tried.get(row, 0)), 1)
