"""Page tables for a runner that has none, because each of its pages belongs to one row.

Decode thread only, except for the counts of pages.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import lcm

from inference_api.core.state.prefixes import Node, PrefixMatch, encode
from inference_api.core.state.row_pages import HeldPages, RowPages
from inference_api.runner import RowMemory


class BoundRowPages(RowPages):
    """Page `row * (num_pages // max_rows) + i` can only be the i-th page of that row.

    Pages are therefore copied instead of shared. A new row needs no copy of the nodes that lie in
    its own pages. A node may lie in a page of a free row while other rows hold copies of it. Only
    whole chunks of prompts are reused, because only these are always computed with the same bits.
    """

    def __init__(
        self, memory: RowMemory, max_rows: int, reuses: bool = True, chunk_tokens: int = 1
    ) -> None:
        super().__init__(memory, max_rows, reuses)
        self._row_pages = -(-self._max_tokens // self.page_tokens)
        self._chunk_pages = lcm(chunk_tokens, self.page_tokens) // self.page_tokens

    def best_row(self, free_rows: Sequence[int], root: Hashable, prompt: Sequence[int]) -> int:
        """Returns the row that needs the fewest copies and loses the fewest cached pages; of
        several, the one that has been free longest."""
        nodes = self._match(root, encode(prompt)).nodes
        found = Counter(page // self._row_pages for node in nodes for page in node.pages)

        def cost(row: int) -> int:
            own = range(row * self._row_pages, (row + 1) * self._row_pages)
            return len(self._tree.nodes.keys() & own) - 2 * found[row]

        return min(free_rows, key=cost)

    def _match(self, root: Hashable, prompt: bytes) -> PrefixMatch:
        nodes = super()._match(root, prompt).nodes
        return PrefixMatch(nodes[: len(nodes) // self._chunk_pages * self._chunk_pages])

    def _reusable_tokens(self, held: HeldPages, num_tokens: int, generated: Sequence[int]) -> int:
        num_tokens = super()._reusable_tokens(held, min(num_tokens, held.num_prompt - 1), generated)
        chunk_tokens = self._chunk_pages * self.page_tokens
        return num_tokens // chunk_tokens * chunk_tokens

    def _own_page(self, held: HeldPages, index: int) -> int:
        return held.row * self._row_pages + index

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
