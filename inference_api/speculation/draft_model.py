"""Drafts with a small model of the same vocabulary, token by token.

Leviathan et al. 2022, arXiv 2211.17192. Tokens are accepted as for any other draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

from inference_api.core.rows import Draft, UserRow
from inference_api.core.state.row_pages import RowPages
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn, Guess, ModelRunner, RowStep
from inference_api.speculation.chains import Chain, ChainDrafts

PREFILLED_TOKENS = 128  # most tokens of a step for rows that are far behind in the draft's cache
GUESS = Draw(SamplingParams(temperature=0.0, num_logprobs=0), (0,), ())


class ModelDrafts(ChainDrafts):
    """A `DraftSource` and `DraftModel` that gives a greedy chain to each row whose tokens are all
    in the draft model's cache.

    The guesses stay in that cache, and are valid as far as the row accepts them. If pages run out,
    a row gets no draft, and its pages are free for other rows.
    """

    name = "draft"
    wants_hidden = False

    def __init__(
        self, runner: ModelRunner, pages: RowPages, max_tokens: int, vocab_size: int
    ) -> None:
        """`runner` is loaded, `pages` are its own, and it has as many rows as the target model,
        whose vocabulary has `vocab_size` tokens. Rows beyond its context get no draft."""
        super().__init__(vocab_size)
        self.runner = runner
        self.pages = pages
        self._max_tokens = max_tokens
        self._caches: dict[int, _RowCache] = {}  # keyed by row index

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        begun = self._first_steps(rows)
        steps = [step for _, step in begun]
        growing = chains = [chain for chain, step in begun if step.draws]
        while steps:
            results = self.runner.step(steps)
            guesses = [_guess(each.drawn[0]) for each in results if each.drawn]
            growing = [each for each in self.extend(growing, guesses) if self._has_pages(each.row)]
            steps = [self._next_step(chain) for chain in growing]
        return self.drafts_of(chains)

    def give_up(self) -> None:
        """See `DraftModel`."""
        for cache in [*self._caches.values()]:
            self._leave(cache.row)

    def _first_steps(self, rows: Sequence[UserRow]) -> list[tuple[Chain, RowStep]]:
        """Returns chains and steps with the tokens that the cache lacks, rows that lack the fewest
        first. A row with all its missing tokens in the step also draws, which begins its chain."""
        behind = [
            (_num_tokens(row) - len(cache.tokens), cache, Chain(row, room))
            for row in rows
            if (room := self._room(row)) > 0 and (cache := self._cache_of(row)) is not None
        ]
        behind.sort(key=lambda each: each[0])
        room_tokens, steps = PREFILLED_TOKENS, []
        for num_missing, cache, chain in behind:
            num_taken = num_missing
            if num_missing > 1 + self._max_tokens:  # more than a step of the target model adds
                num_taken = min(num_missing, room_tokens)
                room_tokens -= num_taken
            start = len(cache.tokens)
            tokens = _tokens(chain.row, start, start + num_taken)
            if not tokens or max(tokens) >= self.runner.vocab_size:
                continue
            if not self._has_pages(chain.row, num_taken):
                self._leave(chain.row)
                continue
            cache.tokens += tokens
            draws = (GUESS,) if num_taken == num_missing else ()
            steps.append((chain, RowStep(chain.row.index, start, tokens, draws)))
        return steps

    def _room(self, row: UserRow) -> int:
        """Returns how many tokens may be guessed. The last guess is not written to the cache."""
        own_room = self.runner.max_seq_len - _num_tokens(row) + 1
        return min(self._max_tokens, row.token_limit - len(row.generated) - 1, own_room)

    def _cache_of(self, row: UserRow) -> "_RowCache | None":
        """Returns the row's cache, cut to its valid tokens. A new one begins with cached pages of
        the prompt; None if pages are too few for all its tokens and a page for each other row."""
        cache, salt = self._caches.get(row.index), row.request.params.cache_salt
        if cache is None:
            num_more = _num_tokens(row) - len(row.tokens)
            num_spare = len(self._caches) + -(-num_more // self.pages.page_tokens)
            if not self.pages.can_begin(salt, row.tokens, num_spare):
                return None
            num_tokens = self.pages.begin(row.index, salt, row.tokens)
            cache = self._caches[row.index] = _RowCache(row, [*row.tokens[:num_tokens]], num_tokens)
            row.on_leave = self._leave
        cache.follow(row)
        self.pages.seal(row.index, cache.num_right, row.following)
        return cache

    def _has_pages(self, row: UserRow, num_tokens: int = 1) -> bool:
        """Reserve pages for more tokens of the row's cache. Returns whether there were enough."""
        return self.pages.reserve(row.index, len(self._caches[row.index].tokens) + num_tokens)

    def _next_step(self, chain: Chain) -> RowStep:
        """Add a chain's last guess to the cache. Returns the step that draws the next guess."""
        tokens = self._caches[chain.row.index].tokens
        tokens.append(chain.token_ids[-1])
        return RowStep(chain.row.index, len(tokens) - 1, tokens[-1:], (GUESS,))

    def _leave(self, row: UserRow) -> None:
        """Give up the row's pages. Tokens that are known to be right stay for similar prompts."""
        cache = self._caches.pop(row.index, None)
        if cache is not None:
            cache.follow(row)
            self.pages.end(row.index, cache.num_right, row.following)


@dataclass(slots=True)
class _RowCache:
    """The tokens of a row in the draft model's cache: its own tokens, then guesses."""

    row: UserRow
    tokens: list[int]
    num_right: int  # leading tokens that are known to be the row's

    def follow(self, row: UserRow) -> None:
        """Drop guesses that the row did not accept, and the last token, which must draw again."""
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
    """Returns the number of tokens of the prompt and the answer."""
    return len(row.request.prompt_tokens) + len(row.generated)


def _tokens(row: UserRow, start: int, stop: int) -> list[int]:
    """Returns a slice of the tokens of the prompt and the answer."""
    prompt = row.request.prompt_tokens
    of_answer = slice(max(start - len(prompt), 0), max(stop - len(prompt), 0))
    return [*prompt[start:stop], *row.generated[of_answer]]
