"""The seam between the decode loop and a model: `ModelRunner`.

The loop owns which row runs whom, every position and every draft; a runner owns weights and KV
memory. All calls come from the decode thread.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference_api.request import SamplingParams, TokenLogprobs

MAX_STEP_TOKENS = 512  # a row's, where layers have windows
MAX_TREE_TOKENS = 33  # a row's own and as many as SPECULATION_TOKENS lets guess behind it
Hidden: TypeAlias = NDArray[np.float32]
"""[…, hidden size]: what the output head takes."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The draw of the token that follows one of a step's tokens.

    `prompt_tokens` and `generated` are the loop's own lists, read and never kept or changed;
    `branch` are drafted tokens that come after them, up to the one that is followed. Where the next
    token is known already, as `known_id`, it is not drawn: only its log probability is wanted.
    `allowed` has a bit per token id, lowest first, where not all of them may be drawn. `prompt_ids`
    has each token of the prompt once, where a repetition penalty counts them in every step.
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
    """Tokens that one row brings to a step, written to slots `start`, `start + 1`, … of its cache.

    They are a chain, or with `parents` a tree: for each token the index of the one it follows, an
    earlier one, or -1 where it follows what the row holds before `start`. A token's position is
    `start` plus how many of these tokens it has before it, so that siblings share a position and no
    two tokens a slot. `draws` belong to the last tokens, one each; a prompt's chunk has none. What
    a tree has before them is a chain.
    """

    row: int
    start: int
    token_ids: Sequence[int]
    draws: Sequence[Draw] = ()
    parents: Sequence[int] | None = None
    wants_hidden: bool = False

    @property
    def num_undrawn(self) -> int:
        """The first tokens, which draw nothing."""
        return len(self.token_ids) - len(self.draws)

    @property
    def num_guesses(self) -> int:
        """The last tokens, which were drafted."""
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
    """The token that follows another; `logprobs` when its sampling asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class RowResult(NamedTuple):
    """The result of one `RowStep`."""

    drawn: Sequence[Drawn]  # one for each of its draws
    hidden: Hidden | None = None
    """[tokens, hidden size] where wanted: of every token."""


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What runs, where and how: for people who watch, nothing is decided by it.

    Bytes are of the whole model, also where several processes share it, and of all user rows.
    `kernels` is their variant, or torch.
    """

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
    """For each row and head its likeliest tokens, best first, and the head's probabilities."""

    token_ids: NDArray[np.int64]  # [rows, heads, ranks]
    probabilities: NDArray[np.float32]  # like token_ids


class DraftHeads(Protocol):
    """Heads that guess a model's next tokens from one hidden state. Decode thread only."""

    paths: Sequence[tuple[int, ...]]
    """The tree that guesses are taken from: for each depth the rank of that head's guess. A path is
    behind all that it begins with."""

    def guess(self, hidden: Sequence[Hidden]) -> HeadGuesses:
        """`hidden` [hidden size] of each row: what drew the row's next token."""


class RowToken(NamedTuple):
    """A token of a row: of its text, or guessed behind that."""

    row: int
    position: int
    token_id: int


class Guess(NamedTuple):
    """The likeliest token behind another, and how likely it is."""

    token_id: int
    probability: float


class DraftLayer(Protocol):
    """A model's own layer that guesses further tokens, one after another. Decode thread only.

    It reads what the model made of a row's tokens, and remembers its own of them in the row's
    pages, beside the model's layers: all steps of the model are told to it.
    """

    def knows(self, row: int, position: int) -> bool:
        """Whether it can guess behind a token there: one that comes right after those that the
        row's last step kept, or after the one it guessed behind last."""

    def guess(self, tokens: Sequence[RowToken]) -> list[Guess]:
        """One for each of `tokens`, of different rows, all of which it knows. Writes to the slots
        before theirs, for which rows need pages."""


class PageLayout(NamedTuple):
    """How a runner's memory of its rows' tokens is cut: into pages of consecutive positions, all of
    one size.

    Layers that see equally far are in one group or in several, of about as many layers each. A row
    has a page for each group and `page_tokens` positions, until the group sees nothing of them any
    more. Pages that are bound are rows' own: number `row * (num_pages // max_rows) + i` can only be
    page i of that row. Behind all these are the pages of the rows' states: see `states_of`.
    """

    num_pages: int
    page_tokens: int
    page_bytes: int
    is_bound: bool = False
    windows: Sequence[int | None] = (None,)
    """How many positions each group sees, a token's own included; None: all."""
    state_pages: int = 0
    """Pages that the state of a row's recurrent layers takes; 0: there are none."""

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    @property
    def has_windows(self) -> bool:
        return any(self.windows)

    def states_of(self, row: int) -> range:
        """Returns the pages that always have the state of the row's recurrent layers: of as many of
        its tokens as were computed. Copies of them are those of that beginning."""
        first = self.num_pages + row * self.state_pages
        return range(first, first + self.state_pages)

    def first_seen(self, num_tokens: int) -> list[int]:
        """Returns for each group the first page that it sees from behind so many tokens on; the
        last whole one always counts as seen."""
        return [
            0 if window is None else max(num_tokens - self._seen(window), 0) // self.page_tokens
            for window in self.windows
        ]

    def row_pages(self, num_tokens: int) -> int:
        """Returns the most pages that a row has while it grows to so many tokens."""
        count = -(-num_tokens // self.page_tokens)
        return sum(
            count
            if window is None
            else min(count, -(-(self._seen(window) + MAX_STEP_TOKENS) // self.page_tokens) + 1)
            for window in self.windows
        )

    def row_tokens(self, num_pages: int, most_tokens: int) -> int:
        """Returns how long a row of at most `most_tokens` can grow with so many pages."""
        most_pages = -(-most_tokens // self.page_tokens)
        lengths = range(self.page_tokens, (most_pages + 1) * self.page_tokens, self.page_tokens)
        count = bisect_right(lengths, num_pages, key=self.row_pages)
        return min(most_tokens, count * self.page_tokens)

    def _seen(self, window: int) -> int:
        """Returns how many positions before a token count as seen."""
        return max(window - 1, self.page_tokens)


class RowMemory(Protocol):
    """What user rows remember: pages, and for each row and group of layers a table of those that it
    has. Rows may have pages in common, which neither writes. Decode thread only."""

    @property
    def layout(self) -> PageLayout: ...

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """Make these the row's pages of a group from its `first` one on. A step needs pages for all
        slots that it reads and writes."""

    def copy_page(self, source: int, target: int) -> None:
        """Make what one page holds that of another."""

    def give_back(self, pages: Sequence[int]) -> None:
        """Nobody needs what these pages hold: the system may have their memory until they are
        written again."""


class ModelRunner(RowMemory, Protocol):
    """A model over `max_rows` user rows of at most `max_seq_len` tokens each.

    A prompt is prefilled up to, not including, its last token; that one is the first that draws, so
    that a chunk needs no output head.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    hidden_size: int
    """Size of the states in `RowResult`; 0 where there are none."""
    is_batch_invariant: bool
    """A token's numbers are the same bits whatever shares its step and however its prompt was cut.
    Else that is true of prompts that are always cut alike. Tokens that draw have the same bits one
    by one and drafted in any case."""
    chunk_tokens: int
    """Most prompt tokens of a step, where PREFILL_CHUNK_TOKENS is unset."""
    has_medusa_heads: bool
    has_mtp: bool
    """Whether it has a layer of its own that guesses further tokens."""
    eos_token_ids: frozenset[int]
    """Tokens that end an answer, by the model's own files."""

    @property
    def facts(self) -> RunnerFacts | None:
        """None where no model runs."""

    @property
    def medusa(self) -> DraftHeads | None:
        """The heads, once loaded."""

    @property
    def mtp(self) -> DraftLayer | None:
        """The layer that guesses further tokens, once loaded."""

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
        """After a step: the row's sequence goes on with these of its tokens, indices of one branch
        from its beginning, in slots that follow each other; the others are forgotten.

        Without it a chain is kept whole, but where layers are recurrent without its guesses. Slots
        behind what was kept are free to be written again.
        """

    def idle(self) -> bool:
        """Look after itself, while no row has work: called once or twice a second. Returns whether
        what the pages hold is lost by that. Raises what `step` would."""

    def close(self) -> None:
        """Nothing comes after this. Idempotent."""


def place_own_pages(runner: ModelRunner) -> int:
    """Give every row pages that no other has, as many as there are: for whoever steps a runner by
    itself. Returns how many tokens a row has room for."""
    for row in range(runner.max_rows):
        for group, pages in enumerate(own_pages(runner, row)):
            runner.place(row, group, 0, pages)
    return min(runner.max_seq_len, len(pages) * runner.layout.page_tokens)


def own_pages(runner: ModelRunner, row: int) -> Sequence[range]:
    """Returns the pages of each group that `place_own_pages` gives to a row."""
    num_groups = runner.layout.num_groups
    count = runner.layout.num_pages // (runner.max_rows * num_groups)
    firsts = ((row * num_groups + group) * count for group in range(num_groups))
    return [range(first, first + count) for first in firsts]
