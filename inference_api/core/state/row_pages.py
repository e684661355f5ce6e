"""The tables of a model's rows: which page holds which of a row's positions.

Decode thread only, but for the three counts of pages.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from inference_api.core.state.pool import PagePool
from inference_api.core.state.prefixes import (
    MIN_REUSED_TOKENS,
    TOKEN_BYTES,
    Node,
    PrefixMatch,
    PrefixTree,
    encode,
)
from inference_api.runner import PageLayout, RowMemory

Reuse: TypeAlias = Literal["all", "prompts", "nothing"]
"""What later requests find: prompts and answers, to the token; whole pages of prompts, where a
runner is not batch invariant and computed only these alike; or nothing."""


class PageCounts(NamedTuple):
    """Pages that rows hold; that no row holds, kept for prompts that begin alike; and others."""

    held: int = 0
    cached: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        return sum(self)


NO_PAGES = PageCounts()


@dataclass(slots=True)
class HeldPages:
    """What one row holds: `pages[i]` for its i-th `page_tokens` positions.

    The first ones are sealed, and those of `nodes`; the others are open: the row alone has them.
    """

    row: int
    root: Hashable
    prompt: bytes  # as the tree has it
    num_prompt: int
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    reused_tokens: int = 0


class RowPages:
    """Pages for the rows that run, and what ended rows leave for prompts that begin alike.

    A row begins, has pages reserved before each step that writes new positions, is sealed after
    it, and ends. Which tokens were written is said as how many of `prompt` and `generated`.
    """

    def __init__(
        self,
        memory: RowMemory,
        layout: PageLayout,
        max_rows: int,
        reuse: Reuse = "all",
        max_seq_len: int | None = None,
    ) -> None:
        """`max_seq_len`: the most tokens of a row; default: as many as there are pages for."""
        self.page_tokens = layout.page_tokens
        self._memory = memory
        self._max_row_pages = layout.num_pages // (max_rows if layout.is_bound else 1)
        if max_seq_len is not None:
            self._max_row_pages = min(self._max_row_pages, -(-max_seq_len // self.page_tokens))
        self._is_ample = layout.num_pages >= max_rows * self._max_row_pages
        self._reuse = reuse
        self._pool = PagePool(layout.num_pages)
        self._tree = PrefixTree(self._pool, layout.page_tokens)
        self._rows: dict[int, HeldPages] = {}

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Pages that no row holds, kept for prompts to come: they are had like free ones."""
        return self._pool.num_cached

    @property
    def num_held(self) -> int:
        return self._pool.num_pages - self._pool.num_free - self._pool.num_cached

    @property
    def counts(self) -> PageCounts:
        free, cached = self.num_free, self.num_cached  # each read once: rows move on meanwhile
        return PageCounts(self._pool.num_pages - free - cached, cached, free)

    def can_reserve(self, num_pages: int) -> bool:
        """Returns whether so many more pages can be had, free or cached."""
        return num_pages <= self._pool.num_free + self._pool.num_cached

    def can_begin(self, root: Hashable, tokens: Sequence[int], num_spare: int) -> bool:
        """Returns whether there are pages for all of these tokens that no row has, and so many to
        spare; always, where all rows have pages for all that they may hold."""
        size = self.page_tokens
        missing = -(-len(tokens) // size) + num_spare - self.num_free - self.num_cached
        if self._is_ample or missing <= 0:
            return True
        # Asked in every turn while a request waits: no more is encoded than is looked for.
        ends = range(size, min(len(tokens), missing * size + 1), size)
        pages = (encode(tokens[end - size : end]) for end in ends)
        return self._tree.num_held(root, pages) >= missing

    def best_row(self, free_rows: Sequence[int], root: Hashable, prompt: Sequence[int]) -> int:
        """Returns the one of `free_rows`, the longest free first, where `prompt` best begins."""
        return free_rows[0]

    def begin(self, row: int, root: Hashable, prompt: Sequence[int], *, reuses: bool = True) -> int:
        """Returns how many tokens of the prompt need not be computed, never the last.

        To be called again while the row has written nothing: others may have sealed more by then.
        Only what was computed under an equal `root` is reused.
        """
        held = self._rows.get(row)
        if held is None:
            held = self._rows[row] = HeldPages(row, root, encode(prompt), len(prompt))
        if reuses:
            self._reuse_longer(held)
        return held.reused_tokens

    def reserve(self, row: int, num_tokens: int) -> bool:
        """Returns whether the row has pages for its first `num_tokens` positions now.

        What is cached makes room. Where that is not enough either, nothing changes.
        """
        held = self._rows[row]
        if num_tokens <= len(held.pages) * self.page_tokens:
            return True
        first, num_pages = len(held.pages), -(-num_tokens // self.page_tokens)
        if num_pages > self._max_row_pages or not self.can_reserve(num_pages - first):
            return False
        held.pages += [self._take(held, index) for index in range(first, num_pages)]
        self._memory.place(row, first, held.pages[first:])
        return True

    def seal(self, row: int, num_tokens: int, generated: Sequence[int] = ()) -> None:
        """The first `num_tokens` of the row's tokens are written and stay: others may have them."""
        held = self._rows[row]
        num_pages = self._reusable_tokens(held, num_tokens, generated) // self.page_tokens
        while (index := len(held.nodes)) < num_pages:
            first = index * self.page_tokens
            tokens = _tokens(held, first, first + self.page_tokens, generated)
            self._join(held, self._tree.seal(self._parent(held), tokens, held.pages[index]))

    def end(self, row: int, num_tokens: int, generated: Sequence[int] = ()) -> None:
        """The row holds nothing any more; the first `num_tokens` of its tokens were written."""
        self.seal(row, num_tokens, generated)
        held = self._rows.pop(row)
        if self._reuse == "all":
            self._leave_tail(held, self._reusable_tokens(held, num_tokens, generated), generated)
        self._tree.let_go(held.nodes)
        for page in held.pages:
            self._pool.drop(page)

    def forget_cached(self) -> None:
        """Forget what no row holds: all there is, while none runs."""
        while self._tree.evict():
            pass

    def trim(self, num_pages: int) -> None:
        """Give memory back until so many pages have any, if rows do not hold more. What is cached
        goes, least recently used first."""
        while self.num_held + self.num_cached > num_pages and self._tree.evict():
            pass
        if given_back := self._pool.give_back(self._pool.num_touched - num_pages):
            self._memory.give_back(given_back)

    def _reuse_longer(self, held: HeldPages) -> None:
        """Take over what there is of the prompt, if that is more than the row has."""
        match = self._match(held.root, held.prompt)
        whole_tokens = len(match.nodes) * self.page_tokens
        num_tokens = whole_tokens + match.tail_tokens
        if num_tokens > held.reused_tokens:
            self._adopt(held, match.nodes[len(held.nodes) :])
            has_tail = match.tail is not None and self._copy(held, match.tail)
            held.reused_tokens = num_tokens if has_tail else whole_tokens

    def _match(self, root: Hashable, prompt: bytes) -> PrefixMatch:
        """Returns what there is of a prompt, but for its last token."""
        match = self._tree.match(root, prompt[:-TOKEN_BYTES])
        return match if self._reuse == "all" else PrefixMatch(match.nodes)

    def _copy(self, held: HeldPages, tail: Node) -> bool:
        """Copy a page to the first open one of the row; False where none can be had."""
        self._tree.touch(tail)  # evicted last then; if it is even so, its page is the one reserved
        if not self.reserve(held.row, (len(held.nodes) + 1) * self.page_tokens):
            return False
        page = held.pages[len(held.nodes)]
        if page != tail.page:
            self._memory.copy_page(tail.page, page)
        return True

    def _take(self, held: HeldPages, index: int) -> int:
        """Returns a page that was free or cached, to be the `index`-th of the row."""
        while (page := self._pool.take()) is None:
            has_evicted = self._tree.evict()
            assert has_evicted, "a cached page can be evicted: who holds a node holds its parents"
        return page

    def _adopt(self, held: HeldPages, nodes: Sequence[Node]) -> None:
        """Hold the pages of the nodes that follow the row's, in place of any it has there."""
        first, pages = len(held.nodes), [node.page for node in nodes]
        self._hold(held, nodes)
        for page in pages:
            self._pool.share(page)
        for page in held.pages[first : first + len(pages)]:
            self._pool.drop(page)
        held.pages[first : first + len(pages)] = pages
        self._memory.place(held.row, first, pages)

    def _join(self, held: HeldPages, node: Node) -> None:
        """Hold the node whose tokens the row has written."""
        self._adopt(held, (node,))

    def _hold(self, held: HeldPages, nodes: Sequence[Node]) -> None:
        self._tree.hold(nodes)
        held.nodes += nodes

    def _parent(self, held: HeldPages) -> Node:
        return held.nodes[-1] if held.nodes else self._tree.root(held.root)

    def _leave_tail(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> None:
        first = len(held.nodes) * self.page_tokens
        if num_tokens - first >= MIN_REUSED_TOKENS:
            tokens = _tokens(held, first, num_tokens, generated)
            page = held.pages[len(held.nodes)]
            self._tree.touch(self._tree.seal(self._parent(held), tokens, page))

    def _reusable_tokens(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> int:
        """Returns how many of the written tokens others may have."""
        if self._reuse == "all":  # behind an answer's end there may be more, drafted
            return min(num_tokens, held.num_prompt + len(generated))
        return min(num_tokens, held.num_prompt - 1) if self._reuse == "prompts" else 0


def _tokens(held: HeldPages, first: int, end: int, generated: Sequence[int]) -> bytes:
    """Returns the tokens at positions `first` to `end` of prompt and answer."""
    num_prompt = held.num_prompt
    answer = generated[max(first - num_prompt, 0) : max(end - num_prompt, 0)]
    return held.prompt[first * TOKEN_BYTES : end * TOKEN_BYTES] + encode(answer)
