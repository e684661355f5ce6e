"""Rows that begin, write, seal and end in any order read their own tokens and lose no page."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from inference_api.core.state.prefixes import NO_PAGE, Node, encode
from inference_api.core.state.stored_pages import Disk
from tests.inference_api.core.state.memory import PAGE_TOKENS, FakeFolder, holders, make_pages

MAX_ROWS, ROW_PAGES = 3, 4
MAX_TOKENS = ROW_PAGES * PAGE_TOKENS

BLOCKS = ((1,) * 12, (2,) * 9, (1, 2, 2), (2,))
texts = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=5).map(lambda some: sum(some, ()))
rows = st.integers(0, MAX_ROWS - 1)

Said: TypeAlias = tuple[int, ...] | MultipleResults[tuple[int, ...]]


@dataclass
class Text:
    root: str
    prompt: tuple[int, ...]
    generated: list[int] = field(default_factory=list)
    num_written: int = 0
    has_begun: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.generated)


class Rows(RuleBasedStateMachine):
    is_bound = False
    windows: tuple[int | None, ...] = (None,)
    state_pages = 0
    said: Bundle[tuple[int, ...]] = Bundle("said")

    @initialize(
        reuses=st.booleans(),
        spare_pages=st.integers(0, 8),
        has_disk=st.booleans(),
        reads_at_once=st.booleans(),
        chunk_pages=st.integers(1, 3),
    )
    def make(
        self,
        reuses: bool,
        spare_pages: int,
        has_disk: bool,
        reads_at_once: bool,
        chunk_pages: int,
    ) -> None:
        of_row = ROW_PAGES * len(self.windows)
        self.num_pages = MAX_ROWS * of_row if self.is_bound else of_row + spare_pages
        self.reuses = reuses
        self.chunk_tokens = chunk_pages * PAGE_TOKENS if self.is_bound else 1
        self.texts: dict[int, Text] = {}  # by row, the oldest first
        has_disk = has_disk and reuses and not self.is_bound
        self.folder = FakeFolder(reads_at_once) if has_disk else None
        self._start()

    def _start(self) -> None:
        self.pages, self.memory = make_pages(
            *(self.num_pages, MAX_ROWS, self.reuses, self.is_bound),
            *(self.windows, self.state_pages, self.chunk_tokens),
        )
        if self.folder is not None:
            self.pages.store(Disk(self.folder, b"fingerprint", self.memory.view_page))

    @precondition(lambda self: self.folder is not None)
    @rule(restarts=st.booleans(), num_lost=st.integers(0, 2))
    def keep_on_disk(self, restarts: bool, num_lost: int) -> None:
        assert self.folder is not None
        assert self.pages.disk is not None
        if restarts:
            for row in tuple(self.texts):
                self._end(row)
            self.pages.disk.flush(60)
        assert not self.pages.disk.write()
        for key in [*self.folder.records][:num_lost]:
            del self.folder.records[key]
        if restarts:
            self._start()

    @precondition(lambda self: self.folder is not None)
    @rule(turns=st.integers(1, 3))
    def prepare(self, turns: int) -> None:
        assert self.pages.disk is not None
        for _ in range(turns):
            self.pages.disk.prepare()

    @rule(target=said, root=st.sampled_from("aab"), prompt=texts)
    def begin(self, root: str, prompt: tuple[int, ...]) -> Said:
        return self._begin(root, prompt)

    @rule(target=said, root=st.sampled_from("aab"), said=said, more=st.just(()) | texts)
    def go_on(self, root: str, said: tuple[int, ...], more: tuple[int, ...]) -> Said:
        return self._begin(root, said + more)

    @precondition(lambda self: len(self.texts) < MAX_ROWS)
    @rule(root=st.sampled_from("aab"), prompt=texts)
    def begin_without_reuse(self, root: str, prompt: tuple[int, ...]) -> None:
        self._begin(root, prompt, reuses=False)

    @precondition(lambda self: self.texts)
    @rule(at=rows)
    def begin_again(self, at: int) -> None:
        row, text = self._pick(at)
        if not text.has_begun:
            num_tokens = self.pages.begin(row, text.root, text.prompt)
            assert num_tokens >= text.num_written
            text.num_written = num_tokens
            self._check_state(row)

    @precondition(lambda self: self.texts)
    @rule(
        at=rows,
        num_tokens=st.sampled_from((1, 9, 15, MAX_TOKENS)),
        answer=texts,
        num_drafted=st.sampled_from((0, 3)),
        seals=st.booleans(),
    )
    def write(
        self, at: int, num_tokens: int, answer: tuple[int, ...], num_drafted: int, seals: bool
    ) -> None:
        row, text = self._pick(at)
        end, before = min(text.num_written + num_tokens, MAX_TOKENS - 3), self._counts()
        if self.state_pages:  # nothing is drafted, and chunks end at borders
            borders = [each for each in self.pages.borders(row) if each > text.num_written]
            end, num_drafted, seals = min([end, *borders]), 0, True
        if not self.pages.reserve(row, end + num_drafted):
            assert self._counts() == before
            assert not self.is_bound
            return
        text.has_begun = True
        missing = max(end - len(text.tokens), 0)
        text.generated += (answer * missing)[:missing]
        for position in range(text.num_written, end + num_drafted):
            tokens = text.tokens[: position + 1] if position < end else ()
            for page in self.memory.write(row, position, (text.root, tokens)):
                assert holders(self.pages._pool, page) == 1
                assert page not in self.pages._tree.nodes
        text.num_written = end
        self.memory.write_state(row, (text.root, text.tokens[:end]))
        if seals:
            self.pages.seal(row, text.num_written, text.generated)

    @precondition(lambda self: self.texts)
    @rule(target=said, at=rows, ends_early=st.booleans())
    def end(self, at: int, ends_early: bool) -> tuple[int, ...]:
        return self._end(self._pick(at)[0], ends_early)

    @precondition(lambda self: self.texts)
    @rule(is_last=st.sampled_from((False, False, False, True)))
    def make_room_for_the_oldest(self, is_last: bool) -> None:
        if is_last:
            self.pages.forget_cached()
        oldest, *younger = self.texts
        for row in younger:
            self._end(row)
        assert self.pages.reserve(oldest, MAX_TOKENS)

    @rule(num_pages=st.integers(0, MAX_ROWS * ROW_PAGES))
    def trim(self, num_pages: int) -> None:
        num_held, num_used = self.pages.counts.held, self.num_pages - self.pages.counts.free
        self.memory.given_back.clear()
        self.pages.trim(num_pages)
        assert self.pages.counts.held == num_held
        left = self.num_pages - self.pages.counts.free
        if self.is_bound:  # a cached page stays while a row has a copy of it
            num_held += num_held
        elif len(self.windows) == 1 and not self.state_pages:  # else several go together
            assert left == min(num_used, max(num_held, num_pages))
        assert left <= min(num_used, max(num_held, num_pages))
        assert self.pages._pool.num_touched <= max(num_held, num_pages)
        assert len(set(self.memory.given_back)) == len(self.memory.given_back)

    @invariant()
    def rows_read_their_own_tokens(self) -> None:
        for row, text in self.texts.items():
            for group, window in enumerate(self.windows):
                first = 0 if window is None else max(text.num_written + 1 - window, 0)
                for position in range(first, text.num_written):
                    written = (text.root, text.tokens[: position + 1])
                    assert self.memory.read(row, position, group) == written

    @invariant()
    def nodes_keep_their_own_tokens(self) -> None:
        tree = self.pages._tree
        found: dict[int, Node] = {}
        for name, root in tree._roots.items():
            assert root.children
            nodes: list[tuple[Node, bytes]] = [(root, b"")]
            for node, before in nodes:
                for child in node.children.values():
                    tokens = before + child.tokens
                    nodes.append((child, tokens))
                    end = len(child.tokens) // 4
                    assert end == PAGE_TOKENS or (self.reuses and not child.children)
                    assert end == PAGE_TOKENS or not self.is_bound
                    there = [page for page in child.pages if page != NO_PAGE]
                    assert there or child.children
                    found |= dict.fromkeys([*there, *child.state], child)
                    for page in child.state:
                        [(_, (root_name, written))] = self.memory.content(page).values()
                        assert (root_name, encode(written)) == (name, tokens)
                    for page in there:
                        group, (root_name, written) = self.memory.content(page)[end - 1]
                        assert child.pages[group] == page
                        assert (root_name, encode(written)) == (name, tokens)
        assert found == tree.nodes

    @invariant()
    def pages_are_counted(self) -> None:
        pool, tree = self.pages._pool, self.pages._tree
        tables = Counter(
            page
            for held in self.pages._rows.values()
            for table in held.tables
            for page in table
            if page != NO_PAGE
        )
        tables.update(self._read_ahead())
        for page in range(self.num_pages):
            assert holders(pool, page) == tables[page] + (page in tree.nodes)
        assert self.pages.counts.free == self.num_pages - len(tables.keys() | tree.nodes.keys())
        assert self.pages.counts.cached == len(tree.nodes.keys() - tables.keys())
        assert self.pages.counts.held == len(tables)
        for row, held in self.pages._rows.items():
            assert not held.nodes or held.nodes[-1] in tree.nodes.values()
            for group, table in enumerate(held.tables):
                placed = self.memory.groups.get((row, group), [])
                assert len(placed) >= len(table)
                assert all(page in (own, NO_PAGE) for own, page in zip(placed, table, strict=False))

    def teardown(self) -> None:
        for row in tuple(self.texts):
            self._end(row)
        if self.pages.disk is not None:
            self.pages.disk.finish()
        self.pages.forget_cached()
        assert self.pages.counts.free == self.num_pages

    def _pick(self, at: int) -> tuple[int, Text]:
        return list(self.texts.items())[at % len(self.texts)]

    def _begin(self, root: str, prompt: tuple[int, ...], reuses: bool = True) -> Said:
        free = [row for row in range(MAX_ROWS) if row not in self.texts]
        prompt = prompt[: MAX_TOKENS - 4]
        if not free:
            return multiple()
        row = self.pages.best_row(free, root, prompt)
        num_tokens = self.pages.begin(row, root, prompt, reuses=reuses)
        assert num_tokens < len(prompt)
        assert num_tokens % self.chunk_tokens == 0
        assert reuses or not num_tokens
        self.texts[row] = Text(root, prompt, num_written=num_tokens, has_begun=not reuses)
        self._check_state(row)
        return prompt

    def _read_ahead(self) -> list[int]:
        """Pages that are held for what is being read, and those that are prepared."""
        disk, pages = self.pages.disk, list[int]()
        if disk is not None and disk._reading is not None:
            pages += disk._reading.held
            pages += [page for read in disk._reading.reads for page in read.taken]
        if disk is not None and disk._preparing is not None:
            pages += disk._preparing.taken
        return pages

    def _check_state(self, row: int) -> None:
        text = self.texts[row]
        if self.state_pages and text.num_written:
            written = (text.root, text.prompt[: text.num_written])
            assert self.memory.read_state(row) == {written}

    def _end(self, row: int, ends_early: bool = False) -> tuple[int, ...]:
        """Where an answer ends within a draft, more is written than is said."""
        text = self.texts.pop(row)
        if (
            ends_early
            and not self.state_pages
            and text.num_written > len(text.prompt)
            and text.generated
        ):
            text.generated.pop()
        self.pages.end(row, text.num_written, text.generated)
        return text.tokens

    def _counts(self) -> tuple[int, int, dict[int, list[list[int]]]]:
        tables = {row: [*map(list, held.tables)] for row, held in self.pages._rows.items()}
        return self.pages.counts.free, self.pages.counts.cached, tables


class BoundRows(Rows):
    is_bound = True


class MixedRows(Rows):
    windows = (None, 15, 15, 30)


class WindowRows(Rows):
    windows = (3, 17)


class HybridRows(Rows):
    state_pages = 2


class HybridWindowRows(Rows):
    windows, state_pages = (None, 15), 1


TestHybridRows, TestHybridWindowRows = HybridRows.TestCase, HybridWindowRows.TestCase
TestRows, TestBoundRows = Rows.TestCase, BoundRows.TestCase
TestMixedRows, TestWindowRows = MixedRows.TestCase, WindowRows.TestCase
TestRows.settings = TestBoundRows.settings = settings(deadline=None)
TestMixedRows.settings = TestWindowRows.settings = TestRows.settings
TestHybridRows.settings = TestHybridWindowRows.settings = TestRows.settings
