"""Rows' pages where each row has its own: a runner without tables.

Decode thread only, but for the counts of pages.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import lcm

from inference_api.core.state.prefixes import Node, encode
from inference_api.core.state.row_pages import HeldPages, RowPages
from inference_api.runner import ModelRunner, PageLayout


class BoundRowPages(RowPages):
    """Page `row * (num_pages // max_rows) + i` can only be the i-th of that row.

    So a page is not shared but copied, and a row that begins takes over what the tree has in its
    pages. A node may be in the page of a row that is free, while others hold it as copies.
    """

    def best_row(self, free_rows: Sequence[int], root: Hashable, prompt: Sequence[int]) -> int:
        """Returns the row where the fewest pages are copied and lost, or the longest free one."""
        match = self._match(root, encode(prompt))
        nodes = match.nodes if match.tail is None else (*match.nodes, match.tail)
        kept = Counter(page // self._row_pages for page in self._tree.nodes)
        found = Counter(page // self._row_pages for node in nodes for page in node.pages)
        return min(free_rows, key=lambda row: kept[row] - 2 * found[row])

    def _own(self, held: HeldPages, index: int) -> int:
        return held.row * self._row_pages + index

    @property
    def _row_pages(self) -> int:
        return -(-self._max_tokens // self.page_tokens)

    def _take(self, held: HeldPages, index: int) -> int:
        page = self._own(held, index)
        if (node := self._tree.nodes.get(page)) is not None:
            self._give_up(node, index)
        self._pool.share(page)
        return page

    def _give_up(self, node: Node, index: int) -> None:
        """Leave the node to a row that has a copy, or have it evicted."""
        rows = self._rows.values()
        holder = next((held for held in rows if node in held.nodes[index : index + 1]), None)
        if holder is None:
            self._tree.cut(node)
        else:
            self._tree.move(node, self._own(holder, index))

    def _adopt(self, held: HeldPages, nodes: Sequence[Node]) -> None:
        first, sources = len(held.nodes), [page for node in nodes for page in node.pages]
        held.nodes += nodes  # first, so that none of them is evicted for the row's pages
        has_pages = self.reserve(held.row, len(held.nodes) * self.page_tokens)
        assert has_pages, "a row has its own pages"
        for source, page in zip(sources, held.tables[0][first:], strict=False):
            if source != page:
                self._memory.copy_page(source, page)

    def _join(self, held: HeldPages, node: Node) -> None:
        held.nodes.append(node)

    def _evict(self) -> bool:
        """What rows hold as copies stays."""
        held = {node for each in self._rows.values() for node in each.nodes}
        node = next((each for each in self._tree.nodes.values() if each not in held), None)
        if node is not None:
            self._tree.cut(node)
        return node is not None


class ChunkMemory:
    """A runner's bound pages, taken together: a page here is as long as the chunks that prompts are
    computed in, since only whole ones are computed alike."""

    def __init__(self, runner: ModelRunner, chunk_tokens: int) -> None:
        small = runner.layout
        assert small.is_bound
        self._runner = runner
        self._row_pages = small.num_pages // runner.max_rows  # the runner's, of a row
        self._together = lcm(chunk_tokens, small.page_tokens) // small.page_tokens
        self._row_chunks = -(-self._row_pages // self._together)
        self.layout = PageLayout(
            runner.max_rows * self._row_chunks,
            self._together * small.page_tokens,
            self._together * small.page_bytes,
            is_bound=True,
        )

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """They are there already."""

    def copy_page(self, source: int, target: int) -> None:
        for from_page, to_page in zip(self._pages(source), self._pages(target), strict=True):
            self._runner.copy_page(from_page, to_page)

    def give_back(self, pages: Sequence[int]) -> None:
        """Rows keep theirs."""

    def _pages(self, page: int) -> range:
        """Returns the runner's pages that this one is made of."""
        row, chunk = divmod(page, self._row_chunks)
        first = chunk * self._together
        end = min(first + self._together, self._row_pages)
        return range(row * self._row_pages + first, row * self._row_pages + end)
