"""The page tables of a model's rows: which page holds which positions.

Decode thread only, except for the counts of pages.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from inference_api.core.state.pool import PageCounts, PagePool
from inference_api.core.state.prefixes import (
    MIN_REUSED_TOKENS,
    NO_PAGE,
    TOKEN_BYTES,
    Node,
    PrefixMatch,
    PrefixTree,
    encode,
)
from inference_api.core.state.stored_pages import Disk, StoredPage, StoredPages
from inference_api.runner import RowMemory

MIN_KEPT_TOKENS = 64  # recurrent state is kept only after at least this many new tokens


@dataclass(slots=True)
class HeldPages:
    """The pages of one row: page `tables[group][i]` holds the i-th `page_tokens` positions.

    The first pages are sealed: they belong to `nodes` of the tree and may be shared. The others are
    open: they belong to the row alone. Pages that a group's window has passed are NO_PAGE.
    """

    row: int
    root: Hashable
    prompt: bytes  # as `encode` returns it
    num_prompt: int
    tables: Sequence[list[int]]
    num_passed: list[int]  # for each group, the leading pages that its window has passed
    nodes: list[Node] = field(default_factory=list)
    reused_tokens: int = 0
    borders: Sequence[int] = ()  # see `RowPages.borders`
    stored: deque[StoredPage] | None = None  # still to read from disk; None before the look-up

    @property
    def num_places(self) -> int:
        """The number of pages in each table."""
        return len(self.tables[0])

    def pages_at(self, index: int) -> list[int]:
        return [table[index] for table in self.tables]


class RowPages:
    """Pages of running rows, and pages that ended rows leave for prompts that begin alike.

    Call `begin` for a row, `reserve` before each step that writes new positions, `seal` after it,
    and `end` at last. `num_tokens` is how many tokens of prompt and `generated` are written.
    """

    def __init__(
        self, memory: RowMemory, max_rows: int, reuses: bool = True, max_seq_len: int | None = None
    ) -> None:
        """`reuses`: later requests may reuse tokens of prompts and answers. `max_seq_len` is the
        most tokens of a row, by default as many as the pages hold."""
        layout = memory.layout
        self._memory, self.layout, self.page_tokens = memory, layout, layout.page_tokens
        most_pages = layout.num_pages // (max_rows if layout.is_bound else 1)
        if max_seq_len is None:
            max_seq_len = most_pages * layout.page_tokens
        self._max_tokens = layout.row_tokens(most_pages, max_seq_len)
        self._ample_pages = max_rows * layout.row_pages(self._max_tokens)
        self._reuses = reuses
        self._pool = PagePool(layout.num_pages)
        self._tree = PrefixTree(self._pool, layout)
        self._rows: dict[int, HeldPages] = {}
        self.disk: StoredPages | None = None
        self.borrow: Callable[[int, int], None] | None = None
        """Called before free pages run out: it may raise the limit by up to this many pages. The
        second number is how many are needed even if all cached pages are evicted. Set if models
        share memory; recurrent states, too, then have memory only while a row runs."""

    def store(self, disk: Disk) -> None:
        """Also keep pages on disk, where they outlive their eviction and the process."""
        self.disk = StoredPages(disk, self.layout, self._tree, self._pool)

    @property
    def tokens_per_page(self) -> float:
        """A row's tokens per page that it holds, before windows free any pages."""
        return self.page_tokens / self.layout.num_groups

    @property
    def limit(self) -> int:
        """The most pages that may have memory."""
        return self._pool.limit

    @property
    def counts(self) -> PageCounts:
        """Cached pages can be taken like free ones."""
        # Read once each, because they may change.
        free, cached = self._pool.num_free, self._pool.num_cached
        return PageCounts(self._pool.limit - free - cached, cached, free)

    def can_reserve(self, num_pages: int) -> bool:
        """Returns whether `num_pages` more pages can be taken, be they free, borrowed or cached."""
        pool = self._pool
        if self.borrow is not None and (missing := num_pages - pool.num_free) > 0:
            self.borrow(missing, missing - pool.num_cached)
        if self.disk is not None and num_pages > pool.num_free + pool.num_cached:
            self.disk.finish()
        return num_pages <= pool.num_free + pool.num_cached

    def can_begin(self, root: Hashable, tokens: Sequence[int], num_spare: int) -> bool:
        """Returns whether there are pages for the `tokens` that no row holds, and another
        `num_spare` pages of each group. Always True if there are enough pages for all rows to be
        full. Held pages of layers with a window do not count, because they may be gone by then."""
        layout, size = self.layout, self.page_tokens
        missing = layout.row_pages(len(tokens)) + num_spare * layout.num_groups
        missing -= self._pool.num_free + self._pool.num_cached
        if missing > 0 and self.borrow is not None:
            before = self.limit
            self.borrow(missing, missing)
            missing -= self.limit - before
        if self.limit >= self._ample_pages or missing <= 0:
            return True
        num_full = layout.windows.count(None)
        if not num_full or layout.state_pages:
            return False
        # This runs in every turn while a request waits, so it encodes no more than it looks up.
        missing = -(-missing // num_full)
        ends = range(size, min(len(tokens), missing * size + 1), size)
        pages = (encode(tokens[end - size : end]) for end in ends)
        return self._tree.num_held(root, pages) >= missing

    def best_row(self, free_rows: Sequence[int], root: Hashable, prompt: Sequence[int]) -> int:
        """Returns the best of `free_rows`, the longest free first, to begin this prompt in."""
        return free_rows[0]

    def begin(self, row: int, root: Hashable, prompt: Sequence[int], *, reuses: bool = True) -> int:
        """Give a row the cached pages of its prompt. Returns their tokens, which are never all.

        Only tokens that were computed under an equal `root` are reused. Call it again while the row
        has written nothing: by then others may have sealed more, or pages have been read from disk.
        """
        held = self._rows.get(row)
        if held is None:
            tables: Sequence[list[int]] = [[] for _ in self.layout.windows]
            held = HeldPages(row, root, encode(prompt), len(prompt), tables, [0] * len(tables))
            self._rows[row] = held
        if reuses:
            if self.disk is not None:
                self._read(self.disk, held)
            if not held.stored:
                self._reuse_longer(held)
        return held.reused_tokens

    def is_reading(self, row: int) -> bool:
        """Returns whether the row has more pages to read from disk, by further `begin` calls."""
        return bool(self._rows[row].stored)

    def had_better_wait(self, row: int, leader: int) -> bool:
        """Returns whether the leader has yet to write the next page of the row's prompt, which both
        would otherwise compute. Recurrent layers continue at few places only: see `borders`."""
        held, ahead = self._rows[row], self._rows[leader]
        end = (len(held.nodes) + 1) * self.page_tokens * TOKEN_BYTES
        return (
            self._reuses
            and not self.layout.state_pages
            and held.root == ahead.root
            and len(ahead.nodes) <= len(held.nodes)
            and end < len(held.prompt)
            and ahead.prompt.startswith(held.prompt[:end])
        )

    def borders(self, row: int) -> Sequence[int]:
        """Returns the ascending positions in the prompt where a chunk has to end, because `seal`
        keeps the state of recurrent layers there."""
        return self._rows[row].borders

    def reserve(self, row: int, num_tokens: int) -> bool:
        """Take pages for the row's first `num_tokens` positions, evicting cached ones if needed.
        Returns whether there were enough. If not, the row's pages do not change."""
        held = self._rows[row]
        first, end = held.num_places, -(-num_tokens // self.page_tokens)
        if end <= first:
            return True
        has_room = end <= -(-self._max_tokens // self.page_tokens)
        if not has_room or not self.can_reserve((end - first) * self.layout.num_groups):
            return False
        for group, table in enumerate(held.tables):
            table += [self._take(held, index) for index in range(first, end)]
            self._memory.place(row, group, first, table[first:])
        return True

    def seal(self, row: int, num_tokens: int, generated: Sequence[int] = ()) -> None:
        """Note that the row's first `num_tokens` tokens are written and final, so that others may
        share their pages. Drops pages that all attention windows have passed."""
        held = self._rows[row]
        self._seal(held, num_tokens, generated)
        if num_tokens in held.borders:
            self._keep_state(held, held.nodes[-1])
        if self.layout.has_windows:
            self._pass(held, num_tokens)

    def end(self, row: int, num_tokens: int, generated: Sequence[int] = ()) -> None:
        """Drop all pages of the row. Its first `num_tokens` tokens were written."""
        held = self._rows.pop(row)
        self._seal(held, num_tokens, generated)
        reusable_tokens = self._reusable_tokens(held, num_tokens, generated)
        if self.layout.state_pages:
            if reusable_tokens == num_tokens:
                self._leave_state(held, num_tokens, generated)
        else:
            self._leave_tail(held, reusable_tokens, generated)
        for node in held.nodes:
            self._tree.touch(node)
        for index in reversed(range(held.num_places)):  # the first pages are evicted last
            self._drop(held.pages_at(index))
            for node in held.nodes[index : index + 1]:
                self._drop(self._share(node.state))
        if self.disk is not None:
            self.disk.want(held.nodes)
        if self.borrow is not None and self.layout.state_pages:
            self._memory.give_back(self.layout.states_of(row))

    def forget_cached(self) -> None:
        """Evict all cached pages."""
        while self._evict():
            pass

    def trim(self, num_pages: int) -> None:
        """Release memory until at most `num_pages` pages have any, or only those that rows hold.
        Evicts cached pages, the least recently used first."""
        while self.limit - self._pool.num_free > num_pages and self._evict():
            pass
        if released := self._pool.give_back(self._pool.num_touched - num_pages):
            self._memory.give_back(released)

    def limit_to(self, num_pages: int) -> None:
        """Let at most `num_pages` pages have memory from now on, or those that rows hold if these
        are more. Evicts cached pages, the least recently used first."""
        self.trim(num_pages)
        self._pool.limit = max(num_pages, self._pool.num_touched)

    def _read(self, disk: StoredPages, held: HeldPages) -> None:
        tokens = held.prompt[:-TOKEN_BYTES]
        if held.stored is None:
            held.stored = disk.ahead(held.root, tokens)
        disk.read(held.root, tokens, held.stored)

    def _reuse_longer(self, held: HeldPages) -> None:
        """Take over the cached pages of the prompt, if they are more than the row has."""
        match = self._match(held.root, held.prompt)
        whole_tokens = len(match.nodes) * self.page_tokens
        num_tokens = whole_tokens + match.tail_tokens
        if self.layout.state_pages:
            most_pages = (len(match.nodes) + 1) * self.layout.num_groups
            if not self.can_reserve(most_pages + self.layout.state_pages):
                return  # the tail might not be copied
            held.borders = self._borders(held, match.num_alike, max(num_tokens, held.reused_tokens))
        if num_tokens > held.reused_tokens:
            state = self._share(match.state)
            self._adopt(held, match.nodes[len(held.nodes) :])
            has_tail = match.tail is not None and self._copy(held, match.tail)
            held.reused_tokens = num_tokens if has_tail else whole_tokens
            for page, state_page in zip(state, self.layout.states_of(held.row), strict=False):
                self._memory.copy_page(page, state_page)
            self._drop(state)

    def _borders(self, held: HeldPages, num_alike: int, num_tokens: int) -> Sequence[int]:
        """Returns the positions from which later prompts may continue: where this prompt left the
        tree, and the end of its last whole page, if that is far enough to be worth a step."""
        if not self._reuses:
            return ()
        size = self.page_tokens
        last = (held.num_prompt - 2) // size * size
        wanted = {num_alike * size, last if last - num_tokens >= MIN_KEPT_TOKENS else 0}
        return sorted(each for each in wanted if num_tokens < each <= last)

    def _share(self, pages: Sequence[int]) -> Sequence[int]:
        """Hold these pages of the tree, so that they are not evicted before `_drop`."""
        held_pages = [page for page in pages if page != NO_PAGE]
        for page in held_pages:
            self._pool.share(page)
        return held_pages

    def _keep_state(self, held: HeldPages, node: Node) -> None:
        """Keep a copy of the row's recurrent state after this node, if there is room."""
        count, of_node = self.layout.state_pages, self._share(node.pages)
        if not node.state and self.can_reserve(count):
            pages = [self._take(held, 0) for _ in range(count)]
            for state_page, page in zip(self.layout.states_of(held.row), pages, strict=True):
                self._memory.copy_page(state_page, page)
            self._tree.keep_state(node, pages)
            self._drop(pages)
        self._drop(of_node)

    def _leave_state(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> None:
        """Keep the row's recurrent state at its end, after all its tokens."""
        if num_tokens > len(held.nodes) * self.page_tokens:
            self._keep_state(held, self._sealed(held, num_tokens, generated))
        elif held.nodes:
            self._keep_state(held, held.nodes[-1])

    def _match(self, root: Hashable, prompt: bytes) -> PrefixMatch:
        """Returns the tree's match for a prompt without its last token, which must be computed."""
        return self._tree.match(root, prompt[:-TOKEN_BYTES])

    def _copy(self, held: HeldPages, tail: Node) -> bool:
        """Copy a tail's pages to the row's first open ones. Returns False if pages run out."""
        sources, index = self._share(tail.pages), len(held.nodes)
        has_pages = self.reserve(held.row, (index + 1) * self.page_tokens)
        if has_pages:
            for source, page in zip(sources, held.pages_at(index), strict=True):
                self._memory.copy_page(source, page)
        self._drop(sources)
        return has_pages

    def _take(self, held: HeldPages, index: int) -> int:
        """Take a free or cached page as the row's `index`-th."""
        return self._tree.take()

    def _evict(self) -> bool:
        return self._tree.evict()

    def _drop(self, pages: Sequence[int]) -> None:
        for page in pages:
            if page != NO_PAGE:
                self._pool.drop(page)

    def _seal(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> None:
        num_pages = self._reusable_tokens(held, num_tokens, generated) // self.page_tokens
        while (num_sealed := len(held.nodes)) < num_pages:
            end = (num_sealed + 1) * self.page_tokens
            self._join(held, self._sealed(held, end, generated))

    def _sealed(self, held: HeldPages, end: int, generated: Sequence[int]) -> Node:
        """Returns the node of the row's tokens after its last node, up to `end`."""
        index, num_prompt = len(held.nodes), held.num_prompt
        first = index * self.page_tokens
        answer = generated[max(first - num_prompt, 0) : max(end - num_prompt, 0)]
        tokens = held.prompt[first * TOKEN_BYTES : end * TOKEN_BYTES] + encode(answer)
        parent = held.nodes[-1] if held.nodes else self._tree.root(held.root)
        return self._tree.seal(parent, tokens, held.pages_at(index))

    def _pass(self, held: HeldPages, num_tokens: int) -> None:
        """Drop the pages that no later token attends to."""
        seen = self.layout.first_seen(num_tokens)
        for table, begin, end in zip(held.tables, held.num_passed, seen, strict=True):
            self._drop(table[begin:end])
            table[begin:end] = [NO_PAGE] * len(table[begin:end])
        held.num_passed = seen

    def _adopt(self, held: HeldPages, nodes: Sequence[Node]) -> None:
        """Hold the pages of the nodes after the row's last one, instead of the row's own there."""
        first = len(held.nodes)
        held.nodes += nodes
        end = len(held.nodes)
        seen = self.layout.first_seen(end * self.page_tokens)
        for group, table in enumerate(held.tables):
            num_passed = max(seen[group] - first, 0)
            pages = [node.pages[group] for node in nodes[num_passed:]]
            for page in pages:
                self._pool.share(page)
            self._drop(table[first:end])
            # Passed positions are never read, so any page may stand there.
            placed = pages[-1:] * num_passed + pages
            if table[first:end] != placed:  # placing the first page means a new request to runners
                self._memory.place(held.row, group, first, placed)
            table[first:end] = [NO_PAGE] * num_passed + pages

    def _join(self, held: HeldPages, node: Node) -> None:
        """Hold the node for tokens that the row itself has written."""
        self._adopt(held, (node,))

    def _leave_tail(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> None:
        if num_tokens - len(held.nodes) * self.page_tokens >= MIN_REUSED_TOKENS:
            self._tree.touch(self._sealed(held, num_tokens, generated))

    def _reusable_tokens(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> int:
        """Returns how many of the written tokens others may reuse."""
        # Rejected drafted tokens may be written after the answer's end.
        return min(num_tokens, held.num_prompt + len(generated)) if self._reuses else 0
