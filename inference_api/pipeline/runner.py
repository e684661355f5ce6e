"""`ModelRunner` of rank 0, for a model whose layers are split over several ranks. Decode thread
only.

Rank 0 has the embedding and its own layers. After a step has been round the ring, rank 0 applies
the final norm, the head and sampling. Constraints, penalties, seeds and drafts stay on rank 0;
steps send only activations. All other changes of a cache are sent to all ranks in the same order.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from inference_api.pipeline.messages import PLACED_PAGES, BadMessage, Kind, Message
from inference_api.pipeline.pauses import Pauses
from inference_api.pipeline.rank_runners import MakeRunner, runner_in_place_of
from inference_api.pipeline.ranks import Split, checked, layers_of
from inference_api.pipeline.ring import LOAD_TIMEOUT_S, Ring, RingBroken
from inference_api.pipeline.ring_decoder import Rounds, decode_by
from inference_api.request import SamplingParams
from inference_api.runner import (
    DraftHeads,
    Draw,
    PageLayout,
    RowResult,
    RowStep,
    RunnerFacts,
    place_own_pages,
)

logger = logging.getLogger(__name__)

SILENCES_PER_TIMEOUT = 4  # pings per timeout, so that an idle server does not count as dead
PARTS_TRIED = (1, 2, 3, 4, 6, 8)
TRIALS = 2  # runs for each number of parts; the fastest counts


class PipelineRunner:
    """The runner of rank 0. Its facts are known before `load`, which waits for the other ranks."""

    has_mtp, mtp = False, None  # not supported: see `EngineOptions.with_layers`

    def __init__(self, make_runner: MakeRunner, split: Split, join: Callable[[int], Ring]) -> None:
        """`make_runner` makes a runner of this rank's layers. `join` joins the ring, given the
        hidden size. Raises StartupError if the model cannot be split in this way."""
        self._make_runner, self._join = make_runner, join
        self.pauses = Pauses()  # an operator may change the split in these
        self._ring: Ring | None = None
        self.split = split
        self._local = make_runner(layers_of(split, 0))
        checked(split, self._local.num_layers, len(split))
        self.is_batch_invariant = self._local.is_batch_invariant
        self.chunk_tokens = self._local.chunk_tokens
        self.max_rows = self._local.max_rows
        self.max_seq_len = self._local.max_seq_len
        self.vocab_size = self._local.vocab_size
        self.hidden_size = self._local.hidden_size
        self.num_layers = self._local.num_layers
        self.eos_token_ids = self._local.eos_token_ids
        self.has_medusa_heads = self._local.has_medusa_heads
        self.medusa: DraftHeads | None = None

    @property
    def facts(self) -> RunnerFacts:
        return self._local.facts

    def load(self) -> None:
        """See `ModelRunner`. Raises RingBroken if another rank cannot load; its log says why."""
        ring = self._ring = self._join(self.hidden_size)
        checked(self.split, self.num_layers, ring.num_ranks)
        pages = self._pages_that_fit(ring, self._local.layout.num_pages, self.split)
        if not pages:
            raise BadMessage("no pages fit")
        self._local.share_pages(pages)
        self.max_seq_len = self._local.max_seq_len
        self._rounds = Rounds(ring, self.max_rows, self.hidden_size)
        self._load(ring)
        self.medusa = self._local.medusa

    def set_split(self, split: Split) -> bool:
        """Have all ranks load their layers of a new split, which empties the caches of all rows.
        Returns False, and changes nothing, if they do not fit into the ranks' memory. Raises
        StartupError, RingBroken."""
        checked(split, self.num_layers, len(self.split))
        if split == self.split:
            return True
        pages = self.layout.num_pages
        local = runner_in_place_of(self._local, self._make_runner, layers_of(split, 0), pages)
        if local is None or not self._pages_that_fit(self._current_ring, pages, split):
            return False
        self._local.unload()
        self._local, self.split = local, split
        # Draft sources keep the heads of the first load, which do not depend on the split.
        self._load(self._current_ring)
        self.choose_parts()
        return True

    def warm_up(self) -> None:
        self.choose_parts()
        self._local.warm_up()

    def choose_parts(self) -> None:
        """Set the number of parts for a step of all rows to the fastest."""
        place_own_pages(self)
        times = {}
        for tried in PARTS_TRIED:
            if tried <= self.max_rows:
                self._rounds.parts_at_all_rows = tried
                times[tried] = min(self._seconds_of(self.max_rows) for _ in range(TRIALS))
        self._rounds.parts_at_all_rows = min(times, key=times.__getitem__)
        logger.info("steps of all rows in %d parts", self._rounds.parts_at_all_rows)

    def tokens_per_s(self, seconds: float, num_rows: int) -> float:
        """Measure steps in which `num_rows` rows write their first token, for about `seconds`."""
        place_own_pages(self)
        self._seconds_of(num_rows)
        times: list[float] = []
        while len(times) < TRIALS or sum(times) < seconds:
            times.append(self._seconds_of(num_rows))
        return num_rows * len(times) / sum(times)

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        """See `ModelRunner`. Raises RingBroken."""
        self.pauses.worked()
        return self._local.step(rows)

    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        self._local.keep(row, accepted)
        if any(token != place for place, token in enumerate(accepted)):
            self._current_ring.send(Message(Kind.KEEP, (row.row, row.start, *accepted)))

    @property
    def layout(self) -> PageLayout:
        return self._local.layout

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        self._local.place(row, group, first, pages)
        for at in range(0, len(pages), PLACED_PAGES):
            numbers = (row, group, first + at, *pages[at : at + PLACED_PAGES])
            self._current_ring.send(Message(Kind.PLACE, numbers))

    def copy_page(self, source: int, target: int) -> None:
        self._local.copy_page(source, target)
        self._current_ring.send(Message(Kind.COPY_PAGE, (source, target)))

    def give_back(self, pages: Sequence[int]) -> None:
        """Does nothing: ranks keep their memory."""

    def idle(self) -> bool:
        """Ping the other ranks if it is time, and do operators' work. Raises RingBroken."""
        ring = self._current_ring
        if time.monotonic() - ring.sent_at_s > ring.timeout_s / SILENCES_PER_TIMEOUT:
            self._ping(ring.timeout_s)
        return self.pauses.turn()

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        ring, self._ring = self._ring, None
        if ring is not None:
            with suppress(RingBroken), closing(ring):
                ring.send(Message(Kind.STOP))
                ring.settle()

    @property
    def _current_ring(self) -> Ring:
        assert self._ring is not None, "load comes first"
        return self._ring

    def _pages_that_fit(self, ring: Ring, num_pages: int, split: Split) -> int:
        """Returns how many of `num_pages` pages fit on every rank; 0 if layers do not fit."""
        ring.send(Message(Kind.FIT, (num_pages, *split)))
        kind, (pages, *_), _ = ring.receive(LOAD_TIMEOUT_S)
        if kind is not Kind.FIT or not 0 <= pages <= num_pages:
            raise BadMessage(f"{kind.name} of {pages} came back, not of 0 to {num_pages} pages")
        return pages

    def _load(self, ring: Ring) -> None:
        """Load the layers of all ranks at the same time."""
        pages = self._local.layout.num_pages
        ring.send(Message(Kind.LOAD, (self._local.agreement, pages, *self.split)))
        self._local.load()
        decode_by(self._local, self._rounds)
        self._ping(LOAD_TIMEOUT_S)

    def _ping(self, timeout_s: float) -> None:
        """Wait until all ranks have handled all messages."""
        self._current_ring.send(Message(Kind.PING))
        if self._current_ring.receive(timeout_s).kind is not Kind.PING:
            raise BadMessage("no ping came back")

    def _seconds_of(self, num_rows: int) -> float:
        draws = [Draw(SamplingParams(temperature=0.0), (0,), ())]
        rows = [RowStep(row, 0, (0,), draws) for row in range(num_rows)]
        began_s = time.perf_counter()
        self._local.step(rows)
        return time.perf_counter() - began_s
