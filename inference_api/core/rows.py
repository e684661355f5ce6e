"""The fixed user rows: the request that each row runs, its progress, and its pages.

Decode thread only.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inference_api.core.pooling import PooledStates
from inference_api.core.state.row_pages import RowPages
from inference_api.errors import ConstraintFailed, HearthError
from inference_api.request import (
    Constraint,
    FinishReason,
    GenerationRequest,
    Switch,
    TokenEvent,
    TokenLogprobs,
)
from inference_api.runner import Draw, Drawn, RowStep

Tokens = tuple[int, ...]
SPARE_PAGES = 2  # pages that an admission leaves free for each running row, lest it soon pause


class Draft(NamedTuple):
    """Guessed tokens that may follow a row's next token: a chain or, with `parents`, a tree.

    `parents` has the index of the earlier guess that each guess follows, -1 for the row's next
    token; siblings differ. `likelihoods` has the probability that each guess and its ancestors are
    drawn. They never rise, so the first guesses of a draft are its best, and form a draft too.
    """

    token_ids: Sequence[int] = ()
    parents: Sequence[int] | None = None
    likelihoods: Sequence[float] = ()

    def first(self, count: int) -> "Draft":
        parents = None if self.parents is None else self.parents[:count]
        if parents is not None and all(parent == at - 1 for at, parent in enumerate(parents)):
            parents = None
        return Draft(self.token_ids[:count], parents, self.likelihoods[:count])


NO_DRAFT = Draft()


@dataclass(slots=True)
class UserRow:
    """One request in its row. The last of `tokens` is not prefilled: decoding starts with it."""

    index: int
    request: GenerationRequest
    token_limit: int  # tokens this row may produce, bounded by max_tokens and the context
    admitted_at_s: float
    constraint: Constraint | None = None
    number: int = 0  # place in the order of admission: the lowest was admitted first
    num_cached: int = 0  # leading tokens of prompt and answer that are in the row's pages
    room_tokens: int = 0  # positions for which the row is known to have pages
    reused_tokens: int = 0  # prompt tokens that were cached before the row prefilled any
    borders: Sequence[int] = ()  # positions where chunks of the prompt end: `RowPages.borders`
    switch: Switch | None = None  # the switch that brought its model into memory
    began_before_pause: bool = False  # whether it had prefilled anything before a pause
    generated: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # until the first event
    pooled: PooledStates | None = None  # until the first event
    finish_reason: FinishReason | None = None
    on_leave: "Callable[[UserRow], None] | None" = None  # called when it ends or pauses
    tokens: Tokens = field(init=False)  # the prompt; after a pause, the answer so far, too
    _num_found: int = field(init=False, default=0)  # tokens cached before the row prefilled any
    _prompt_ids: frozenset[int] = field(init=False, default=frozenset())
    _plain_draw: Draw = field(init=False)  # the same in every step

    def __post_init__(self) -> None:
        request = self.request
        self.tokens = request.prompt_tokens + tuple(self.generated)
        if request.params.pooling is not None and not self.generated:
            self.pooled = PooledStates(request.params.pooling)
        if request.params.sampling.repetition_penalty != 1.0:
            self._prompt_ids = frozenset(request.prompt_tokens)
        self._plain_draw = self._draw_of((), None)

    def resumed(self) -> "UserRow":
        """Returns a row that goes on with the request after a pause."""
        return UserRow(
            self.index,
            self.request,
            self.token_limit,
            self.admitted_at_s,
            self.constraint,
            self.number,
            reused_tokens=self.reused_tokens,
            switch=self.switch,
            began_before_pause=self.began_before_pause or self.has_begun,
            generated=self.generated,
        )

    @property
    def is_prefilled(self) -> bool:
        return self.num_cached >= len(self.tokens) - 1

    @property
    def needs_all_tokens(self) -> bool:
        """Whether every prompt token has to be computed, because it is scored or pooled."""
        return self.request.needs_whole_prompt and not self.generated

    @property
    def has_begun(self) -> bool:
        """Whether the row has prefilled anything yet."""
        return self.num_cached > self._num_found

    @property
    def last_token_id(self) -> int:
        """The token that the next step computes first."""
        return self.generated[-1] if self.generated else self.request.prompt_tokens[-1]

    @property
    def following(self) -> Sequence[int]:
        """The tokens generated after `tokens`."""
        return self.generated[len(self.tokens) - len(self.request.prompt_tokens) :]

    def reuse(self, num_tokens: int) -> None:
        """Note that the row's pages already hold the first `num_tokens` tokens."""
        self.num_cached = self._num_found = num_tokens
        if not self.began_before_pause:  # else it may have prefilled these itself
            self.reused_tokens = num_tokens

    def chunk_tokens(self, max_tokens: int) -> int:
        """Returns the size of the next chunk: at most `max_tokens`, and up to the next border."""
        num_tokens = min(max_tokens, self.lacking_tokens)
        ahead = (each - self.num_cached for each in self.borders if each > self.num_cached)
        return min(num_tokens, next(ahead, num_tokens))

    @property
    def lacking_tokens(self) -> int:
        """Tokens still to prefill."""
        return len(self.tokens) - 1 - self.num_cached

    def take_prompt(self, num_tokens: int) -> RowStep:
        """Returns a step with the next prompt tokens. Each scores its successor, if requested."""
        start = self.num_cached
        self.num_cached += num_tokens
        tokens = self.tokens
        draws: Sequence[Draw] = ()
        params = self.request.params
        num_logprobs = params.num_prompt_logprobs
        if num_logprobs is not None and self.needs_all_tokens:
            sampling = replace(params.sampling, num_logprobs=num_logprobs)
            following = tokens[start + 1 : self.num_cached + 1]
            draws = [Draw(sampling, tokens, (), known_id=token) for token in following]
        wants_hidden = self.pooled is not None and params.pooling == "mean"
        token_ids = tokens[start : self.num_cached]
        return RowStep(self.index, start, token_ids, draws, None, wants_hidden)

    def fitting(self, draft: Draft) -> Draft:
        """Returns the draft, cut to the number of tokens that the answer may still have."""
        room_tokens = self.token_limit - len(self.generated) - 1
        return draft if len(draft.token_ids) <= room_tokens else draft.first(max(room_tokens, 0))

    def take_step(self, draft: Draft = NO_DRAFT, wants_hidden: bool = False) -> RowStep:
        """Returns a step with the last token, which is not cached, and a draft from `fitting`."""
        start = self.num_cached
        self.num_cached += 1
        token_id = self.last_token_id
        wants_hidden = wants_hidden or self.pooled is not None
        if not draft.token_ids:
            return RowStep(self.index, start, (token_id,), (self._draw(),), None, wants_hidden)
        guesses, parents, _ = draft
        if parents is not None:
            parents = (-1, *(each + 1 for each in parents))
        branches: list[Tokens] = [()]
        for place, guess in enumerate(guesses):
            parent = place if parents is None else parents[place + 1]
            branches.append((*branches[parent], guess))
        draws = [self._draw(branch) for branch in branches]
        return RowStep(self.index, start, (token_id, *guesses), draws, parents, wants_hidden)

    def accept(
        self, drawn: Sequence[Drawn], batch_size: int, drafted_tokens: int = 0
    ) -> TokenEvent:
        """Append the drawn tokens of the accepted branch. Returns the event for the session."""
        generated, num_before = self.generated, len(self.generated)
        logprobs: list[TokenLogprobs] = []
        error: HearthError | None = None
        for token_id, of_token in drawn:
            if token_id in self.request.stop_token_ids:
                self.finish_reason = FinishReason.STOP
            elif len(generated) < self.token_limit:
                generated.append(token_id)
                if of_token is not None:
                    logprobs.append(of_token)
                if self.constraint is not None:
                    error = self._follow(self.constraint, token_id)
            if self.finish_reason is None and len(generated) >= self.token_limit:
                self.finish_reason = FinishReason.LENGTH
            if self.finish_reason is not None:
                break
        self.num_cached += len(drawn) - 1  # all but the last were drafted, so the step wrote them
        prompt_logprobs, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        pooled, self.pooled = self.pooled, None
        return TokenEvent(
            tuple(generated[num_before:]),
            self.finish_reason,
            error,
            admitted_at_s=self.admitted_at_s,
            reused_tokens=self.reused_tokens,
            batch_size=batch_size,
            drafted_tokens=drafted_tokens,
            accepted_tokens=min(len(drawn) - 1, len(generated) - num_before),
            logprobs=tuple(logprobs),
            prompt_logprobs=prompt_logprobs,
            switch=self.switch,
            embedding=None if pooled is None else pooled.embedding(),
        )

    def _follow(self, constraint: Constraint, token_id: int) -> ConstraintFailed | None:
        try:
            constraint.accept(token_id)
        except ConstraintFailed as error:
            self.finish_reason = FinishReason.ERROR
            return error
        if constraint.is_complete:
            self.finish_reason = FinishReason.STOP
        return None

    def _draw(self, branch: Tokens = ()) -> Draw:
        """Returns how to draw the token after the answer so far and a draft's `branch`."""
        request = self.request
        has_to_go_on = len(self.generated) + len(branch) < request.params.min_tokens
        if self.constraint is None and not branch and not has_to_go_on:
            return self._plain_draw
        allowed = request.not_stopping if has_to_go_on else None
        if self.constraint is not None:
            allowed = (
                self.constraint.allowed if not branch else self.constraint.allowed_after(branch)
            )
        return self._draw_of(branch, allowed)

    def _draw_of(self, branch: Tokens, allowed: bytes | None) -> Draw:
        request, generated = self.request, self.generated
        return Draw(
            *(request.params.sampling, request.prompt_tokens, generated, branch),
            allowed=allowed,
            prompt_ids=self._prompt_ids,
        )


class RowTable:
    """The user rows of one runner, and their pages.

    `users[i]` is the request in row i, or None while the row is free. `pages` holds the KV cache of
    rows, and the pages that ended rows have left for prompts that begin alike.

    When pages run out, requests pause: the request admitted last gives up its row and pages. It
    resumes before any new request is admitted. The request admitted first never pauses.
    """

    def __init__(self, max_rows: int, pages: RowPages) -> None:
        self.users: list[UserRow | None] = [None] * max_rows
        self.pages = pages
        self.paused: list[UserRow] = []  # in order of admission
        self.pause_later: Callable[[UserRow], bool] = lambda row: False
        """Called before a row pauses. It may instead pause a row of another model that was admitted
        later; returns whether it did. Set if models share memory."""
        self._num_pauses = 0  # since the last `take_pauses`
        self._num_admitted = 0
        self._free = deque(range(max_rows))  # the longest free row first

    def may_admit(self, request: GenerationRequest, is_sure: bool = False) -> bool:
        """Returns whether no request is paused, a row is free, and there are pages for the prompt
        and, unless a row `is_sure` for the request, SPARE_PAGES for each running row."""
        has_row = bool(self._free) and not self.paused
        num_spare = 0 if is_sure else SPARE_PAGES * len(self)
        return has_row and self._has_room(request, request.prompt_tokens, num_spare)

    def assign(self, request: GenerationRequest, max_seq_len: int, now_s: float) -> UserRow:
        """Put a request into a free row. A row must be free: see `may_admit`."""
        limits = max_seq_len - len(request.prompt_tokens), request.params.max_tokens
        token_limit = min(each for each in limits if each is not None)
        constraint = None if request.grammar is None else request.grammar()
        self._num_admitted += 1
        index = self._best_row(request, request.prompt_tokens)
        row = UserRow(index, request, token_limit, now_s, constraint, self._num_admitted)
        return self._begin(row)

    def resume(self) -> None:
        """Resume paused rows in order of admission, while there are pages for all their tokens."""
        while self._free and self.paused:
            row, num_spare = self.paused[0], SPARE_PAGES * (len(self) + 2)
            if not self._has_room(row.request, row.tokens, num_spare):
                return
            del self.paused[0]
            row.index = self._best_row(row.request, row.tokens)
            self._begin(row)

    def make_room(self, row: UserRow, num_tokens: int) -> bool:
        """Reserve pages for `num_tokens` more tokens of a row. If there are too few, rows pause,
        the last admitted first. Returns False if the row itself had to pause."""
        while not self.reserve(row, num_tokens):
            last = max(self.busy(), key=lambda each: each.number)
            if self.pause_later(last):
                continue
            self.pause(last)
            if last is row:
                return False
        return True

    def pause(self, row: UserRow) -> None:
        """Take its row and pages from a request, which waits for `resume`."""
        self._leave(row)
        insort(self.paused, row.resumed(), key=lambda each: each.number)
        self._num_pauses += 1

    def take_pauses(self) -> int:
        """Returns the number of pauses since the last call."""
        num_pauses, self._num_pauses = self._num_pauses, 0
        return num_pauses

    def reuse(self, row: UserRow) -> None:
        """Take over the cached pages of a row's prompt. There may be more than at the last call."""
        salt, is_reused = row.request.params.cache_salt, not row.needs_all_tokens
        row.reuse(self.pages.begin(row.index, salt, row.tokens, reuses=is_reused))
        row.borders = self.pages.borders(row.index)

    def reserve(self, row: UserRow, num_tokens: int) -> bool:
        """Reserve pages for more tokens of a row. Returns whether there were enough."""
        end = row.num_cached + num_tokens
        if end <= row.room_tokens:  # the usual case, for every row in every turn
            return True
        if not self.pages.reserve(row.index, end):
            return False
        row.room_tokens = -(-end // self.pages.page_tokens) * self.pages.page_tokens
        return True

    def seal(self, row: UserRow) -> None:
        """Note that all planned tokens of a row are written, so others may share its full pages."""
        self.pages.seal(row.index, row.num_cached, row.following)

    def went_on(self, row: UserRow, start: int) -> None:
        """Note that a row has decoded from position `start` on. Frees pages that all attention
        windows have passed."""
        page_tokens = self.pages.page_tokens
        if row.num_cached // page_tokens > start // page_tokens and row.finish_reason is None:
            self.seal(row)

    def free(self, row: UserRow) -> None:
        """Free the row of an ended request, or forget the request if it is paused."""
        if row in self.paused:
            self.paused.remove(row)
        else:
            self._leave(row)

    def busy(self) -> list[UserRow]:
        return [user for user in self.users if user is not None]

    def prefilling(self) -> list[UserRow]:
        """Busy rows with tokens still to prefill, in order of admission."""
        rows = [user for user in self.users if user is not None and not user.is_prefilled]
        return sorted(rows, key=lambda row: row.number)

    def decoding(self) -> list[UserRow]:
        return [user for user in self.users if user is not None and user.is_prefilled]

    def __len__(self) -> int:
        """Number of busy rows."""
        return len(self.users) - len(self._free)

    def _has_room(self, request: GenerationRequest, tokens: Tokens, num_spare: int) -> bool:
        """Returns whether there are pages for `tokens` and `num_spare` more; always True if no row
        is busy, because one request alone fits."""
        return not len(self) or self.pages.can_begin(request.params.cache_salt, tokens, num_spare)

    def _best_row(self, request: GenerationRequest, tokens: Tokens) -> int:
        index = self.pages.best_row(self._free, request.params.cache_salt, tokens)
        self._free.remove(index)
        return index

    def _begin(self, row: UserRow) -> UserRow:
        self.users[row.index] = row
        self.reuse(row)
        return row

    def _leave(self, row: UserRow) -> None:
        assert self.users[row.index] is row, "a row is freed once, by the request that holds it"
        self.users[row.index] = None
        self._free.append(row.index)
        self.pages.end(row.index, row.num_cached, row.following)
        if row.on_leave is not None:
            row.on_leave(row)
