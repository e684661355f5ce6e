"""Page tables for a runner that has none, because each of its pages belongs to one row.

Decode thread only, except for the counts of pages.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import lcm

from inference_api.core.state.prefixes import Node, encode
from inference_api.core.state.row_pages import HeldPages, RowPages
from inference_api.runner import ModelRunner, PageLayout


class BoundRowPages(RowPages):
    """Page `row * (num_pages // max_rows) + i` can only be the i-th page of that row.

    Pages are therefore copied instead of shared. A new row needs no copy of the nodes that lie in
    its own pages. A node may lie in a page of a free row while other rows hold copies of it.
    """

    def best_row(self, free_rows: Sequence[int], root: Hashable, prompt: Sequence[int]) -> int:
        """Returns the row that needs the fewest copies and loses the fewest cached pages; of
        several, the one that has been free longest."""
        match = self._match(root, encode(prompt))
        nodes = match.nodes if match.tail is None else (*match.nodes, match.tail)
        kept = Counter(page // self._row_pages for page in self._tree.nodes)
        found = Counter(page // self._row_pages for node in nodes for page in node.pages)
        return min(free_rows, key=lambda row: kept[row] - 2 * found[row])

    def _own_page(self, held: HeldPages, index: int) -> int:
        return held.row * self._row_pages + index

    @property
    def _row_pages(self) -> int:
        return -(-self._max_tokens // self.page_tokens)

    def _take(self, held: HeldPages, index: int) -> int:
        page = self._own_page(held, index)
        if (node := self._tree.nodes.get(page)) is not None:
            self._give_up(node, index)
        self._pool.share(page)
        return page

    def _give_up(self, node: Node, index: int) -> None:
        """Move the node to a row that holds a copy, or evict it if none does."""
        rows = self._rows.values()
        holder = next((held for held in rows if node in held.nodes[index : index + 1]), None)
        if holder is None:
            self._tree.cut(node)
        else:
            self._tree.move(node, self._own_page(holder, index))

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
        """Evict a cached page of a node that no row holds."""
        held = {node for each in self._rows.values() for node in each.nodes}
        node = next((each for each in self._tree.nodes.values() if each not in held), None)
        if node is not None:
            self._tree.cut(node)
        return node is not None


class ChunkMemory:
    """Groups a runner's pages into pages as long as whole chunks of a prompt, because only whole
    chunks are always computed with the same bits."""

    def __init__(self, runner: ModelRunner, chunk_tokens: int) -> None:
        small = runner.layout
        assert small.is_bound
        self._runner = runner
        self._row_pages = small.num_pages // runner.max_rows  # pages of the runner for each row
        self._together = lcm(chunk_tokens, small.page_tokens) // small.page_tokens
        self._row_chunks = -(-self._row_pages // self._together)
        self.layout = PageLayout(
            runner.max_rows * self._row_chunks,
            self._together * small.page_tokens,
            self._together * small.page_bytes,
            is_bound=True,
        )

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """Does nothing: bound pages are in place."""

    def copy_page(self, source: int, target: int) -> None:
        for from_page, to_page in zip(self._pages(source), self._pages(target), strict=True):
            self._runner.copy_page(from_page, to_page)

    def give_back(self, pages: Sequence[int]) -> None:
        """Does nothing: rows keep their memory."""

    def _pages(self, page: int) -> range:
        """Returns the runner's pages that make up this page."""
        row, chunk = divmod(page, self._row_chunks)
        first = chunk * self._together
        end = min(first + self._together, self._row_pages)
        return range(row * self._row_pages + first, row * self._row_pages + end)
