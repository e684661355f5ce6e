"""A rank other than rank 0: computes its layers as the messages of the ring ask.

It runs on the main thread and ends when rank 0 says so. It fails if a neighbour is gone, rank 0 is
silent for too long, or a message cannot be handled. Its neighbours then see their connections
close.
"""

import logging
from collections.abc import Sequence
from contextlib import closing

from inference_api.engine.local_runner import LocalRunner
from inference_api.errors import StartupError
from inference_api.loading.config import PAGE_TOKENS, LayerRange
from inference_api.pipeline.messages import BadMessage, Kind, Message, read_step
from inference_api.pipeline.rank_runners import MakeRunner, runner_in_place_of
from inference_api.pipeline.ranks import layers_of
from inference_api.pipeline.ring import LOAD_TIMEOUT_S, Ring
from inference_api.runner import RowStep

logger = logging.getLogger(__name__)


class RankWorker:
    """Owns the weights and the KV cache of its layers."""

    def __init__(self, ring: Ring, make_runner: MakeRunner) -> None:
        self._ring, self._make_runner = ring, make_runner
        self._runner: LocalRunner | None = None

    def run(self) -> None:
        """Work until rank 0 stops the ring. Raises RingBroken, BadMessage, StartupError."""
        with closing(self._ring):
            self._work()

    def _work(self) -> None:
        timeout_s = LOAD_TIMEOUT_S  # other ranks may be loading
        while True:
            message = self._ring.receive(timeout_s)
            timeout_s = LOAD_TIMEOUT_S if message.kind is Kind.LOAD else self._ring.timeout_s
            if message.kind in (Kind.STEP, Kind.PROMPT):
                self._step(message)
                continue
            if message.kind is Kind.FIT:
                self._ring.send(Message(Kind.FIT, self._fitting(message.numbers)))
                continue
            if not self._ring.is_last or message.kind is Kind.PING:
                self._ring.send(message)  # before handling it, so that all ranks load together
            if message.kind is Kind.STOP:
                self._ring.settle()
                return
            self._handle(message)

    def _handle(self, message: Message) -> None:
        numbers = message.numbers
        match message.kind:
            case Kind.LOAD:
                self._load(numbers)
            case Kind.KEEP:
                row, start, *accepted = numbers
                slots = [start, *(start + token for token in accepted)]
                self._check([row], slots)
                self._check_has(row, max(slots) + 1)
                self._loaded.keep(RowStep(row, start, ()), accepted)
            case Kind.PLACE:
                row, group, first, *pages = numbers
                self._check([row], [first * PAGE_TOKENS, (first + len(pages) - 1) * PAGE_TOKENS])
                self._check_group(row, group, first)
                self._check_pages(pages)
                self._loaded.place(row, group, first, pages)
            case Kind.COPY_PAGE:
                source, target = numbers
                self._check_pages(numbers)
                self._loaded.copy_page(source, target)

    def _fitting(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns the numbers of FIT, with fewer pages if this rank has room for fewer, and 0 if
        its new layers do not fit in place of the loaded ones."""
        pages, *split = numbers
        layers = self._layers_of(split)
        if not pages:
            return numbers
        if self._runner is None:
            return (min(pages, self._make_runner(layers).layout.num_pages), *split)
        runner = runner_in_place_of(self._runner, self._make_runner, layers, pages)
        return (0 if runner is None else pages, *split)

    def _layers_of(self, split: Sequence[int]) -> LayerRange:
        if len(split) != self._ring.num_ranks:
            raise BadMessage(f"a split of {len(split)} for {self._ring.num_ranks} ranks")
        return layers_of(split, self._ring.rank)

    def _load(self, numbers: Sequence[int]) -> None:
        """Load the layers. Raises StartupError if memory is short, or rank 0 has another model."""
        agreement, pages, *split = numbers
        if self._runner is not None:
            self._runner.unload()
        self._runner = self._make_runner(self._layers_of(split))
        if self._runner.agreement != agreement:
            raise StartupError(
                f"Rank {self._ring.rank} has another model than rank 0, or other settings of "
                "it; give all ranks the same MODEL, DEVICE, DTYPE, QUANTIZATION, "
                "KV_CACHE_DTYPE, USER_ROWS, MAX_SEQ_LEN, SPECULATION and SPECULATION_TOKENS, "
                "and the same version of Hearth."
            )
        self._runner.share_pages(pages)
        self._runner.load()
        logger.info("rank %d has its layers of %s", self._ring.rank, "-".join(map(str, split)))

    def _step(self, message: Message) -> None:
        runner = self._loaded
        rows, returned = read_step(message.numbers, runner.max_rows, runner.max_seq_len)
        num_tokens = sum(len(each.token_ids) for each in rows)
        if message.states is None or len(message.states) != num_tokens:
            raise BadMessage(f"{num_tokens} tokens without their residual")
        is_prompt = message.kind is Kind.PROMPT
        if is_prompt and len(rows) > 1:
            raise BadMessage(f"a prompt of {len(rows)} rows")
        for each in rows:
            self._check_has(each.row, each.start + len(each.token_ids))
        after = runner.layers(rows, message.states, is_prompt)
        if self._ring.is_last:
            self._ring.send(Message(Kind.STEP, (), after[returned]))
        else:
            self._ring.send(Message(message.kind, message.numbers, after))

    @property
    def _loaded(self) -> LocalRunner:
        if self._runner is None:
            raise BadMessage("work before there are layers")
        return self._runner

    def _check(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        runner = self._loaded
        if not all(0 <= row < runner.max_rows for row in rows):
            raise BadMessage(f"rows {rows} of {runner.max_rows}")
        if not all(0 <= slot < runner.max_seq_len for slot in slots):
            raise BadMessage(f"slots {slots} of {runner.max_seq_len}")

    def _check_has(self, row: int, num_tokens: int) -> None:
        page, groups = (num_tokens - 1) // PAGE_TOKENS, range(self._loaded.layout.num_groups)
        if not all(self._loaded.has_page(row, group, page) for group in groups):
            raise BadMessage(f"row {row} without pages for {num_tokens} tokens")

    def _check_group(self, row: int, group: int, first: int) -> None:
        """Raises BadMessage for an unknown group, or if pages from `first` on would leave a gap."""
        if not 0 <= group < self._loaded.layout.num_groups:
            raise BadMessage(f"group {group} of {self._loaded.layout.num_groups}")
        if first and not self._loaded.has_page(row, group, first - 1):
            raise BadMessage(f"row {row} without page {first - 1} of group {group}")

    def _check_pages(self, pages: Sequence[int]) -> None:
        count = self._loaded.layout.num_pages
        if not all(0 <= page < count for page in pages):
            raise BadMessage(f"pages {pages} of {count}")
