"""Drafts with a small model of the same vocabulary, token by token.

Leviathan et al. 2022, arXiv 2211.17192. Tokens are accepted as for any other draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft, UserRow
from inference_api.core.state.prefixes import num_common
from inference_api.request import SamplingParams
from inference_api.runner import (
    Draw,
    Drawn,
    Guess,
    ModelRunner,
    RowStep,
    own_pages,
    place_own_pages,
)
from inference_api.speculation.chains import Chain, Growth

PREFILLED_TOKENS = 128  # tokens prefilled in one step, for all rows that the draft's cache lacks
MIN_COPIED_TOKENS = 8  # prefilling fewer takes no longer than copying
GUESS = Draw(SamplingParams(temperature=0.0, num_logprobs=0), (0,), ())


class ModelDrafts:
    """A `DraftSource` that gives a greedy chain to each row for which the draft's cache is up to
    date.

    The draft's guesses stay in its cache and are valid as far as the row continues with them.
    """

    name = "draft"
    wants_hidden = False

    def __init__(self, runner: ModelRunner, max_tokens: int, vocab_size: int) -> None:
        """`runner` is loaded, and has as many rows as the target model, whose vocabulary has
        `vocab_size` tokens. Rows beyond the runner's context get no draft."""
        self._context_tokens = place_own_pages(runner)
        self._runner = runner
        self._max_tokens = max_tokens
        self._caches = [_RowCache(index) for index in range(runner.max_rows)]
        self._growth = Growth(vocab_size)

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        begun = self._first_steps(rows)
        steps = [step for _, step in begun]
        growing = chains = [chain for chain, step in begun if step.draws]
        while steps:
            results = self._runner.step(steps)
            guesses = [_guess(each.drawn[0]) for each in results if each.drawn]
            growing = self._growth.extend(growing, guesses)
            steps = [self._next_step(chain) for chain in growing]
        return self._growth.drafts(chains)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self._growth.learn(outcomes)

    def _first_steps(self, rows: Sequence[UserRow]) -> list[tuple[Chain, RowStep]]:
        """Returns a step with the tokens that the cache lacks, the rows that lack least first. A
        row that gets all of them, up to its last token, begins a chain."""
        behind = []
        for row in rows:
            if (room := self._room(row)) > 0:
                cache = self._cache_of(row)
                behind.append((_num_tokens(row) - len(cache.tokens), cache, Chain(row, room)))
        behind.sort(key=lambda each: each[0])
        room_tokens, steps = PREFILLED_TOKENS, []
        for num_missing, cache, chain in behind:
            num_taken = num_missing
            if num_missing > 1 + self._max_tokens:  # more than one step of the model adds
                num_taken = min(num_missing, room_tokens)
                room_tokens -= num_taken
            start = len(cache.tokens)
            tokens = _tokens(chain.row, start, start + num_taken)
            if tokens and max(tokens) < self._runner.vocab_size:
                cache.tokens += tokens
                draws = (GUESS,) if num_taken == num_missing else ()
                steps.append((chain, RowStep(cache.index, start, tokens, draws)))
        return steps

    def _room(self, row: UserRow) -> int:
        """Returns how many tokens may be guessed. The last one is not written to the cache."""
        own_room = self._context_tokens - _num_tokens(row) + 1
        return min(self._max_tokens, row.token_limit - len(row.generated) - 1, own_room)

    def _cache_of(self, row: UserRow) -> "_RowCache":
        """Returns the row's cache, cut to its valid tokens. A new request keeps the beginning that
        its prompt shares with the old one."""
        cache = self._caches[row.index]
        if cache.owner is not row:
            prompt = list(row.request.prompt_tokens)
            held = [num_common(prompt, each.tokens) for each in self._caches]
            longest = max(range(len(held)), key=lambda index: held[index])
            num_tokens = held[row.index]
            if held[longest] >= num_tokens + MIN_COPIED_TOKENS:
                num_tokens = held[longest]
                self._copy_prefix(longest, row.index, num_tokens)
            cache.owner, cache.tokens, cache.num_right = row, prompt[:num_tokens], num_tokens
        cache.follow(row)
        return cache

    def _copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy whole pages between rows of the draft's cache."""
        count = -(-num_tokens // self._runner.layout.page_tokens)
        groups = zip(own_pages(self._runner, source), own_pages(self._runner, target), strict=True)
        for from_pages, to_pages in groups:
            for from_page, to_page in zip(from_pages[:count], to_pages, strict=False):
                self._runner.copy_page(from_page, to_page)

    def _next_step(self, chain: Chain) -> RowStep:
        """Returns the draft's step for a chain's last guess, and adds the guess to the cache."""
        cache = self._caches[chain.row.index]
        cache.tokens.append(chain.token_ids[-1])
        return RowStep(cache.index, len(cache.tokens) - 1, cache.tokens[-1:], (GUESS,))


@dataclass(slots=True)
class _RowCache:
    """The tokens in one row of the draft's cache: the owner's, then guesses."""

    index: int
    owner: UserRow | None = None
    tokens: list[int] = field(default_factory=list)
    num_right: int = 0  # leading tokens that are known to be the owner's

    def follow(self, row: UserRow) -> None:
        """Drop tokens the row did not accept, and the last one, which must draw again."""
        most = min(len(self.tokens), _num_tokens(row) - 1)
        right = min(self.num_right, most)
        while right < most and [self.tokens[right]] == _tokens(row, right, right + 1):
            right += 1
        del self.tokens[right:]
        self.num_right = right


def _guess(drawn: Drawn) -> Guess:
    assert drawn.logprobs is not None
    return Guess(drawn.token_id, exp(drawn.logprobs.logprob))


def _num_tokens(row: UserRow) -> int:
    """Returns how many tokens prompt and answer have together."""
    return len(row.request.prompt_tokens) + len(row.generated)


def _tokens(row: UserRow, start: int, stop: int) -> list[int]:
    """Returns a slice of the tokens of prompt and answer."""
    prompt = row.request.prompt_tokens
    own = slice(max(start - len(prompt), 0), max(stop - len(prompt), 0))
    return [*prompt[start:stop], *row.generated[own]]
