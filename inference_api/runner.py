"""`ModelRunner`: the interface between the decode loop and a model.

The loop decides which request each row runs, and owns positions and drafts. A runner owns weights
and KV memory. All calls come from the decode thread.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference_api.request import SamplingParams, TokenLogprobs

MAX_STEP_TOKENS = 512  # tokens of one row, if layers have windows
MAX_TREE_TOKENS = 33  # a row's next token and the most guesses of SPECULATION_TOKENS
Hidden: TypeAlias = NDArray[np.float32]
"""[…, hidden size]: input of the output head."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw the token that follows one of a step's tokens.

    `prompt_tokens` and `generated` are the loop's own lists: a runner reads them, and neither keeps
    nor changes them. `branch` has the drafted tokens after them, up to the token that is followed.
    With `known_id` the next token is known, and only its log probability is computed. `allowed` has
    a bit for each token id, lowest first; None allows all. `prompt_ids` is the set of the prompt's
    tokens, given only for a repetition penalty.
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

    They form a chain, or with `parents` a tree. `parents` has for each token the index of an
    earlier token that it follows, or -1 if it follows the slots before `start`. A token's position
    is `start` plus its number of ancestors among these tokens: siblings share a position, but every
    token has its own slot. `draws` belong to the last tokens, one for each; a chunk of a prompt has
    none. Tokens without draws form a chain, in a tree too.
    """

    row: int
    start: int
    token_ids: Sequence[int]
    draws: Sequence[Draw] = ()
    parents: Sequence[int] | None = None
    wants_hidden: bool = False

    @property
    def num_undrawn(self) -> int:
        """Number of tokens without a draw; they come first."""
        return len(self.token_ids) - len(self.draws)

    @property
    def returned(self) -> range:
        """Indices of the tokens that draw; of all tokens if hidden states are wanted."""
        return range(0 if self.wants_hidden else self.num_undrawn, len(self.token_ids))

    @property
    def num_guesses(self) -> int:
        """Number of drafted tokens; they come last."""
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

    drawn: Sequence[Drawn]  # one for each of its draws
    hidden: Hidden | None = None
    """[tokens, hidden size], of all tokens, if wanted."""


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What runs where, for people; nothing is decided by it. Bytes count the whole model, even if
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
    """For each row and head: the likeliest tokens, best first, and their probabilities."""

    token_ids: NDArray[np.int64]  # [rows, heads, ranks]
    probabilities: NDArray[np.float32]  # like token_ids


class DraftHeads(Protocol):
    """Heads that guess a model's next tokens from one hidden state. Decode thread only."""

    paths: Sequence[tuple[int, ...]]
    """The paths of the tree of guesses: for each depth, the rank of a guess of that depth's head.
    Every path comes after its own beginnings."""

    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        """Returns guesses, from the state [hidden size] that drew each row's next token."""


class RowToken(NamedTuple):
    """A token of a row: of its text, or guessed after it."""

    row: int
    position: int
    token_id: int


class Guess(NamedTuple):
    """The likeliest token after another, and its probability."""

    token_id: int
    probability: float


class DraftLayer(Protocol):
    """A model's own layer that guesses further tokens, one after another. Decode thread only.

    It follows all steps of the model: it reads the model's hidden states, and keeps keys and values
    of its own in the row's pages.
    """

    def knows(self, row: int, position: int) -> bool:
        """Returns whether it can guess after a token at this position: the token must come right
        after the tokens kept by the row's last step, or after the token of the last guess."""

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        """Returns a guess after each of `tokens`, of different rows; `knows` must hold for each.
        Writes to the slots before theirs, for which the rows need pages."""


class PageLayout(NamedTuple):
    """How a runner's KV memory is cut into pages of consecutive positions, all of one size.

    Layers with equal windows form one group, or several groups of about as many layers each. A row
    has one page for each group and `page_tokens` positions, until the group's window has passed
    them. If pages are bound, each belongs to a row: page `row * (num_pages // max_rows) + i` can
    only be the row's i-th. After all these come the pages of recurrent states: see `states_of`.
    """

    num_pages: int
    page_tokens: int
    page_bytes: int
    is_bound: bool = False
    windows: Sequence[int | None] = (None,)
    """Positions that each group attends to, a token's own included; None: all."""
    state_pages: int = 0
    """Pages that the recurrent state of a row takes; 0 if there is none."""

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    @property
    def has_windows(self) -> bool:
        return any(self.windows)

    def states_of(self, row: int) -> range:
        """Returns the pages that hold the row's current recurrent state, after all its computed
        tokens. Copies of them keep the state after that beginning."""
        first = self.num_pages + row * self.state_pages
        return range(first, first + self.state_pages)

    def first_seen(self, num_tokens: int) -> list[int]:
        """Returns for each group the first page that tokens after the first `num_tokens` attend to.
        The last whole page always counts as attended."""
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
        """Returns how long a row can grow with `num_pages` pages, at most `most_tokens`."""
        most_pages = -(-most_tokens // self.page_tokens)
        lengths = range(self.page_tokens, (most_pages + 1) * self.page_tokens, self.page_tokens)
        count = bisect_right(lengths, num_pages, key=self.row_pages)
        return min(most_tokens, count * self.page_tokens)

    def _seen(self, window: int) -> int:
        """Returns how many positions before a token count as attended."""
        return max(window - 1, self.page_tokens)


class RowMemory(Protocol):
    """The KV memory of user rows: pages, and a table for each row and group of layers. Rows may
    share pages, which are then only read. Decode thread only."""

    @property
    def layout(self) -> PageLayout: ...

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """Set the row's pages of a group, from index `first` on. A step needs pages for all slots
        that it reads and writes."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the contents of one page to another."""

    def give_back(self, pages: Sequence[int]) -> None:
        """Release the memory of pages whose contents are not needed, until their next write."""


class ModelRunner(RowMemory, Protocol):
    """A model over `max_rows` user rows of at most `max_seq_len` tokens each.

    A prompt is prefilled without its last token. That token is the first that draws, so chunks of
    prompts need no output head.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    hidden_size: int
    """Size of the states in `RowResult`; 0 if there are none."""
    is_batch_invariant: bool
    """Whether a token's numbers have the same bits whatever else is in its step, and however its
    prompt was cut. If False, this holds only for prompts that are always cut alike. In either case
    a token that draws has the same bits whether it was drafted or not."""
    chunk_tokens: int
    """Most prompt tokens of a step, if PREFILL_CHUNK_TOKENS is unset."""
    has_medusa_heads: bool
    has_mtp: bool
    """Whether it has a layer of its own that guesses further tokens."""
    eos_token_ids: frozenset[int]
    """Tokens that end an answer, by the model's own files."""

    @property
    def facts(self) -> RunnerFacts | None:
        """Facts about the model; None if none runs."""

    @property
    def medusa(self) -> DraftHeads | None:
        """The Medusa heads, once loaded, if any."""

    @property
    def mtp(self) -> DraftLayer | None:
        """The layer that guesses further tokens, once loaded, if any."""

    def load(self) -> None:
        """Bring weights and KV cache into memory. Raises StartupError when they do not fit."""

    def warm_up(self) -> None:
        """Run every shape once, so that the first request does not pay for it."""

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        """Run one step. Returns a result for each of `rows`.

        A token sees its row's earlier slots and its own ancestors within the step. The tokens of a
        row are consecutive; those that draw come last. A row's result depends on that row alone,
        not on its neighbours or its index. Randomness is a function of (seed, position).
        """

    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        """After a step, keep these tokens of the row and forget its others. `accepted` are indices
        of one branch from its beginning, which move to consecutive slots.

        Without this call a chain is kept whole; with recurrent layers, without its guesses. Slots
        after the kept tokens may be written again.
        """

    def idle(self) -> bool:
        """Do maintenance. Called once or twice a second while no row has work. Returns whether the
        contents of pages were lost. Raises what `step` would."""

    def close(self) -> None:
        """Release everything. The last call. Idempotent."""


def place_own_pages(runner: ModelRunner) -> int:
    """Give every row pages of its own, all that there are. For callers that step a runner without
    page tables. Returns how many tokens fit into a row."""
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
