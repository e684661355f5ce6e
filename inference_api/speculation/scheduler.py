"""Chooses which of the proposed tokens are worth verifying, for each row and step."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from inference_api.core.drafts import DraftSource, Outcome
from inference_api.core.plan import PlannedStep
from inference_api.core.rows import Draft, UserRow
from inference_api.core.step_costs import Contents, StepCosts
from inference_api.speculation.ways import Ways


class _Drafting(NamedTuple):
    """How many sources guessed for a step, and how many seconds they took."""

    num_sources: int = 0
    propose_s: float = 0.0


NO_DRAFTING = _Drafting()


class DraftScheduler:
    """Combines a model's draft sources. Decode thread only.

    It takes the guesses for all rows that maximise the expected tokens per second: a row gets no
    draft, a chain or a tree. `Ways` decides by measured times how many sources to ask, often none.
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
        may_branch: bool = True,
    ) -> None:
        """`sources` are ordered fastest first. `max_tokens` bounds a row's draft. `costs` estimates
        the model's step times. With `tries_all` every proposed token is verified, even if it does
        not pay. Without `may_branch` a row gets only one of its proposed drafts, all chains."""
        self.sources = tuple(sources)
        self._max_tokens = max_tokens
        self._tries_all = tries_all
        self._clock = clock
        self._join = merged if may_branch else best_of  # joins drafts of several sources for a row
        # Until costs are measured, each token costs the same, so no draft pays.
        self.costs = costs or StepCosts({}, max_rows * (1 + max_tokens), max_rows)
        # Numbers of rows are grouped by powers of two.
        self._ways = [Ways(1 + len(sources)) for _ in range(max_rows.bit_length() + 1)]
        self._num_to_ask = len(sources) if tries_all else 0  # sources to ask after the next step
        self._next = NO_DRAFTING  # who guessed for the next step
        self._last = NO_DRAFTING  # who guessed for the last step
        self._num_drawn = 0  # tokens drawn by the last step

    @property
    def wants_hidden(self) -> bool:
        """Whether a source that is asked after the next step needs the step's hidden states."""
        return any(source.wants_hidden for source in self.sources[: self._num_to_ask])

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        if not rows or not self._num_to_ask:
            return {}
        started_s = self._clock()
        drafts = self._merged(rows)
        if not self._tries_all:
            other_s = self.costs.loop_s(len(rows)) + self._clock() - started_s
            drafts = self._worth_trying(len(rows), drafts, other_s)
        self._next = _Drafting(self._num_to_ask, self._clock() - started_s)
        return drafts

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Pass the outcomes to the sources that guessed for this step or will guess from it."""
        drafting, self._next = self._next, NO_DRAFTING
        self._last = drafting
        num_sources = max(drafting.num_sources, self._num_to_ask)
        for number, source in enumerate(self.sources[:num_sources]):
            if number < drafting.num_sources or source.wants_hidden:
                source.learn(outcomes)
        if drafting.num_sources:
            self._num_drawn = sum([len(each.drawn) for each in outcomes])

    def learn_turn(self, step: PlannedStep, model_s: float, loop_s: float) -> None:
        """Learn how many seconds a turn took in the model, and in the rest of the loop. The time
        spent on guesses for the next step counts as part of the next turn."""
        loop_s = max(loop_s - self._next.propose_s, 0.0)
        num_rows = len(step.decoding)
        if num_rows and model_s > 0.0 and not self._tries_all:
            ways = self._ways[num_rows.bit_length()]
            if ways.rests():
                self._num_to_ask = 0
            else:
                self._learn_pace(ways, step.contents, model_s + loop_s)
                self._num_to_ask = ways.next()
        self.costs.learn_turn(step.contents, model_s, loop_s)

    def _learn_pace(self, ways: Ways, contents: Contents, seconds: float) -> None:
        rows, drafting = contents.rows, self._last
        plain_s = self.costs.step_s(rows) + self.costs.loop_s(rows)
        relative_tokens = self._num_drawn / rows if drafting.num_sources else 1.0
        if contents.prompt_tokens:
            prompt_s = contents.prompt_tokens * (self.costs.prompt_token_s(rows) or 0.0)
            relative_tokens += prompt_s / plain_s
        ways.learn(drafting.num_sources, (seconds + drafting.propose_s) / plain_s, relative_tokens)

    def _merged(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        """Asks the sources. Returns their joined guesses, for rows whose requests allow them."""
        by_row: dict[int, list[Draft]] = {}
        for source in self.sources[: self._num_to_ask]:
            modes = ("auto", source.name)
            if wanted := [row for row in rows if row.request.params.speculation in modes]:
                for row, draft in source.propose(wanted).items():
                    by_row.setdefault(row, []).append(draft)
        return {row: self._join(drafts).first(self._max_tokens) for row, drafts in by_row.items()}

    def _worth_trying(
        self, num_rows: int, drafts: Mapping[int, Draft], other_s: float
    ) -> Mapping[int, Draft]:
        """Returns the drafts, cut to the likeliest guesses: as many as give the most expected
        tokens per second. `other_s` is the time of the turn outside the step."""
        guesses = [(each, row) for row, draft in drafts.items() for each in draft.likelihoods]
        guesses.sort(key=itemgetter(0), reverse=True)
        num_tokens = accumulate([likelihood for likelihood, _ in guesses], initial=num_rows)
        seconds = (self.costs.up_to(num_rows, len(guesses)) + other_s).tolist()
        rates = [tokens / each for tokens, each in zip(num_tokens, seconds, strict=True)]
        best = rates.index(max(rates))
        counts = Counter([row for _, row in guesses[:best]])
        return {row: drafts[row].first(count) for row, count in counts.items()}


def merged(drafts: Sequence[Draft]) -> Draft:
    """Returns a draft with the branches of all drafts, the likeliest guesses first. A guess that is
    in several drafts gets the highest of its conditional likelihoods."""
    if len(drafts) == 1:
        return drafts[0]
    nodes: dict[tuple[int, int], int] = {}  # indices by parent and token, in order of insertion
    surest: list[float] = []  # conditional likelihoods
    for draft in drafts:
        own_nodes: list[int] = []
        for at, token_id in enumerate(draft.token_ids):
            before = at - 1 if draft.parents is None else draft.parents[at]
            parent, of_parent = (
                (own_nodes[before], draft.likelihoods[before]) if before >= 0 else (-1, 1.0)
            )
            given_parent = draft.likelihoods[at] / of_parent if of_parent > 0.0 else 0.0
            node = nodes.setdefault((parent, token_id), len(nodes))
            if node == len(surest):
                surest.append(given_parent)
            surest[node] = max(surest[node], given_parent)
            own_nodes.append(node)
    return _sorted([*nodes], surest)


def best_of(drafts: Sequence[Draft]) -> Draft:
    """Returns the draft with the highest expected number of right tokens."""
    return max(drafts, key=lambda draft: sum(draft.likelihoods))


def _sorted(nodes: Sequence[tuple[int, int]], surest: Sequence[float]) -> Draft:
    """Returns the draft sorted by likelihood, highest first. A guess stays before its descendants,
    because they are at most as likely, come later, and the sort is stable."""
    likelihoods: list[float] = []
    for (parent, _), given_parent in zip(nodes, surest, strict=True):
        likelihoods.append(given_parent * (likelihoods[parent] if parent >= 0 else 1.0))
    order = sorted(range(len(nodes)), key=lambda node: -likelihoods[node])
    place_of = {node: place for place, node in enumerate(order)}
    return Draft(
        [nodes[node][1] for node in order],
        [place_of.get(nodes[node][0], -1) for node in order],
        [likelihoods[node] for node in order],
    )
