"""`ModelRunner`: the interface between the decode loop and a model.

The loop decides which request each row runs; it owns positions and drafts. A runner owns weights
and KV memory. All calls come from the decode thread.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference_api.request import SamplingParams, TokenLogprobs

MAX_STEP_TOKENS = 512  # most tokens of one row in a step, if layers have attention windows
MAX_TREE_TOKENS = 33  # a row's next token and the highest SPECULATION_TOKENS
Hidden: TypeAlias = NDArray[np.float32]
"""Hidden states [..., hidden size], the input of the output head."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw the token that follows one of a step's tokens.

    `prompt_tokens` and `generated` are the loop's own lists: a runner reads them, but does not keep
    or change them. `branch` has the drafted tokens after them, up to the token that is followed.
    With `known_id` the next token is known, and only its log probability is computed. `allowed` has
    a bit for each token id, lowest first; None allows all. `prompt_ids` is the set of the prompt's
    tokens, given only if there is a repetition penalty.
    """

    sampling: SamplingParams
    prompt_tokens: Sequence[int]
    generated: Sequence[int]
    branch: Sequence[int] = ()
    known_id: int | None = None
    allowed: bytes | None = None
    prompt_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RowStep:
    """The tokens of one row in a step, written to slots `start`, `start + 1`, … of its cache.

    They form a chain or, with `parents`, a tree. `parents` has for each token the index of the
    earlier token that it follows, or -1 if it follows the slots before `start`. A token's position
    is `start` plus its number of ancestors among these tokens: siblings share a position, but every
    token has its own slot. `draws` has one entry for each of the last tokens; it is empty for a
    chunk of a prompt. Tokens without draws form a chain, even in a tree.
    """

    row: int
    start: int
    token_ids: Sequence[int]
    draws: Sequence[Draw] = ()
    parents: Sequence[int] | None = None
    wants_hidden: bool = False

    @property
    def num_undrawn(self) -> int:
        """The number of tokens without a draw, which come first."""
        return len(self.token_ids) - len(self.draws)

    @property
    def returned(self) -> range:
        """Indices of the tokens that draw, or of all tokens if hidden states are wanted."""
        return range(0 if self.wants_hidden else self.num_undrawn, len(self.token_ids))

    @property
    def num_guesses(self) -> int:
        """The number of drafted tokens, which come last."""
        return sum([bool(draw.branch) for draw in self.draws])

    @property
    def positions(self) -> Sequence[int]:
        if self.parents is None:
            return range(self.start, self.start + len(self.token_ids))
        positions: list[int] = []
        for parent in self.parents:
            positions.append(self.start if parent < 0 else positions[parent] + 1)
        return positions


class Drawn(NamedTuple):
    """A drawn token, with `logprobs` if its sampling parameters request them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class RowResult(NamedTuple):
    """The result of one `RowStep`."""

    drawn: Sequence[Drawn]  # one for each of the step's draws
    hidden: Hidden | None = None
    """Hidden states [tokens, hidden size] of all tokens, if `wants_hidden`."""


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """Facts about a model for people; no code depends on them. Bytes count the whole model, even if
    several processes share it, and all user rows. `kernels` is the kernels' variant, or torch."""

    family: str
    num_parameters: int
    num_layers: int
    device: str
    threads: int
    kernels: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    weights_bytes: int
    cache_bytes: int


class HeadGuesses(NamedTuple):
    """The likeliest tokens of each row and head, best first, and their probabilities."""

    token_ids: NDArray[np.int64]  # [rows, heads, ranks]
    probabilities: NDArray[np.float32]  # like token_ids


class DraftHeads(Protocol):
    """Heads that guess a model's next tokens from one hidden state. Decode thread only."""

    paths: Sequence[tuple[int, ...]]
    """The nodes of the tree of guesses. Each is the path to it, which has for each depth the rank
    of a guess by that depth's head. Nodes come after their ancestors."""

    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        """Returns guesses from each row's state [hidden size], which drew the row's next token."""


class RowToken(NamedTuple):
    """A token of a row, drawn or guessed."""

    row: int
    position: int
    token_id: int


class Guess(NamedTuple):
    """The likeliest token after another, and its probability."""

    token_id: int
    probability: float


class DraftLayer(Protocol):
    """A model's own layer that guesses further tokens, one after another. Decode thread only.

    It takes part in all steps of the model: it reads their hidden states, and keeps keys and values
    of its own in the row's pages.
    """

    def knows(self, row: int, position: int) -> bool:
        """Returns whether it can guess the token after the one at this position, which must come
        right after the tokens kept by the row's last step, or after the token of the last guess."""

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        """Returns a guess after each of `tokens`, which belong to different rows; `knows` must be
        True for each. Writes to the slot before each token, for which its row needs a page."""


class PageLayout(NamedTuple):
    """How a runner's KV memory is divided into pages of consecutive positions, all of one size.

    Layers with equal windows form one group, or several groups of about equally many layers. A row
    has one page for each group and `page_tokens` positions, until the group's window has passed
    them. If pages are bound, each belongs to a row: page `row * (num_pages // max_rows) + i` can
    only be the row's i-th page. After these pages come those of recurrent states: see `states_of`.
    """

    num_pages: int
    page_tokens: int
    page_bytes: int
    is_bound: bool = False
    windows: Sequence[int | None] = (None,)
    """For each group, how many positions a token attends to, its own included; None for all."""
    state_pages: int = 0
    """Pages that the recurrent state of a row takes; 0 if the model has no recurrent layers."""

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    @property
    def has_windows(self) -> bool:
        return any(self.windows)

    def states_of(self, row: int) -> range:
        """Returns the pages with the row's current recurrent state, after all its computed tokens.
        Copy them to keep the state at this point."""
        first = self.num_pages + row * self.state_pages
        return range(first, first + self.state_pages)

    def first_seen(self, num_tokens: int) -> list[int]:
        """Returns for each group the index of the first page to which tokens after the first
        `num_tokens` attend. The last whole page always counts as attended."""
        return [
            0 if window is None else max(num_tokens - self._seen(window), 0) // self.page_tokens
            for window in self.windows
        ]

    def row_pages(self, num_tokens: int) -> int:
        """Returns the most pages that a row holds while it grows to `num_tokens` tokens."""
        count = -(-num_tokens // self.page_tokens)
        return sum(
            count
            if window is None
            else min(count, -(-(self._seen(window) + MAX_STEP_TOKENS) // self.page_tokens) + 1)
            for window in self.windows
        )

    def row_tokens(self, num_pages: int, most_tokens: int) -> int:
        """Returns the most tokens of a row with `num_pages` pages, up to `most_tokens`."""
        most_pages = -(-most_tokens // self.page_tokens)
        lengths = range(self.page_tokens, (most_pages + 1) * self.page_tokens, self.page_tokens)
        count = bisect_right(lengths, num_pages, key=self.row_pages)
        return min(most_tokens, count * self.page_tokens)

    def _seen(self, window: int) -> int:
        """Returns how many positions before a token count as attended."""
        return max(window - 1, self.page_tokens)


class RowMemory(Protocol):
    """The KV memory of user rows: pages, and a page table for each row and group of layers. Pages
    that rows share are only read. Decode thread only."""

    @property
    def layout(self) -> PageLayout: ...

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """Set a row's pages in a group, from index `first` on. A step needs pages for all slots
        that it reads or writes."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the contents of one page to another."""

    def give_back(self, pages: Sequence[int]) -> None:
        """Release the memory of pages, whose contents are lost, until they are written again."""


class ModelRunner(RowMemory, Protocol):
    """A model with `max_rows` user rows of at most `max_seq_len` tokens each.

    A prompt is prefilled without its last token, which is the first to draw. Chunks of prompts
    therefore need no output head.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    hidden_size: int
    """Size of the hidden states in `RowResult`; 0 if it returns none."""
    is_batch_invariant: bool
    """Whether a token's numbers have the same bits whatever else is in its step, and however its
    prompt was cut. If False, this is true only of prompts that are always cut alike. In either case
    a token that draws has the same bits whether it was drafted or not."""
    chunk_tokens: int
    """The most prompt tokens of a step, if PREFILL_CHUNK_TOKENS is unset."""
    has_medusa_heads: bool
    has_mtp: bool
    """Whether the model has a layer of its own that guesses further tokens."""
    eos_token_ids: frozenset[int]
    """The tokens that end an answer according to the model's files."""

    @property
    def facts(self) -> RunnerFacts | None:
        """Facts about the model; None if there is no model, as for a mock."""

    @property
    def medusa(self) -> DraftHeads | None:
        """The Medusa heads once they are loaded; None if there are none."""

    @property
    def mtp(self) -> DraftLayer | None:
        """The layer that guesses further tokens once it is loaded; None if there is none."""

    def load(self) -> None:
        """Bring weights and KV cache into memory. Raises StartupError if they do not fit."""

    def warm_up(self) -> None:
        """Run every shape once, so that the first request does not pay for it."""

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        """Run one step. Returns a result for each of `rows`.

        A token attends to its row's earlier slots and to its ancestors within the step. A row's
        result depends on that row alone, not on other rows or its index. Randomness is a function
        of (seed, position).
        """

    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        """After a step, keep the `accepted` tokens of a row and forget its others. `accepted` has
        the indices of one branch from its beginning, whose tokens move to consecutive slots.

        Without this call all tokens of a chain are kept; with recurrent layers, all but its
        guesses. Slots after the kept tokens may be written again.
        """

    def idle(self) -> bool:
        """Do maintenance. Called once or twice a second while no row has work. Returns whether the
        contents of pages were lost. Raises the same errors as `step`."""

    def close(self) -> None:
        """Release everything. No other call may follow. Idempotent."""


def place_own_pages(runner: ModelRunner) -> int:
    """Divide all pages among the rows, for callers that step a runner without page tables of their
    own. Returns how many tokens fit into a row."""
    for row in range(runner.max_rows):
        for group, pages in enumerate(own_pages(runner, row)):
            runner.place(row, group, 0, pages)
    return min(runner.max_seq_len, len(pages) * runner.layout.page_tokens)


def own_pages(runner: ModelRunner, row: int) -> Sequence[range]:
    """Returns for each group the pages that `place_own_pages` gives to a row."""
    num_groups = runner.layout.num_groups
    count = runner.layout.num_pages // (runner.max_rows * num_groups)
    firsts = ((row * num_groups + group) * count for group in range(num_groups))
    return [range(first, first + count) for first in firsts]
