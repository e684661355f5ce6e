"""The prefix tree: pages of computed tokens, each of them a child of the page before it.

Decode thread only.
"""

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_api.core.state.pool import PagePool
from inference_api.runner import PageLayout

MIN_REUSED_TOKENS = 8  # copying fewer tokens saves no time over computing them
TOKEN_BYTES = array("i").itemsize
BEGINNING_BYTES = MIN_REUSED_TOKENS * TOKEN_BYTES
NO_PAGE = -1  # stands for a page that is no longer held


def encode(tokens: Sequence[int]) -> bytes:
    """Returns tokens as the tree's bytes, TOKEN_BYTES for each."""
    return array("i", tokens).tobytes()


@dataclass(slots=True, eq=False)
class Node:
    """The tokens of one page, and their page in each group of layers. A root has neither.

    A node with fewer tokens than fit into a page is a *tail*: the end of a request. A tail has no
    children and no row holds it; a row that continues from it copies its pages.

    In a model with recurrent layers, `state` has pages with their state after the node's tokens. A
    row can continue only after a node that has one, which for a tail means after its last token.
    """

    tokens: bytes = b""
    pages: list[int] = field(default_factory=list)  # for each group; NO_PAGE if passed
    parent: "Node | None" = None
    name: Hashable = None  # a root's key
    children: dict[bytes, "Node"] = field(default_factory=dict)
    similar: dict[bytes, "Node"] = field(default_factory=dict)
    """The most recently used child for each beginning of MIN_REUSED_TOKENS tokens."""
    state: list[int] = field(default_factory=list)
    tail_bytes: set[int] = field(default_factory=set)  # lengths of child tails that had a state
    key: bytes = b""  # the key on disk; empty until it is needed


class PrefixMatch(NamedTuple):
    """The part of a prompt that the tree has: nodes of whole pages, then a node that begins like
    the rest of the prompt, and how many of its tokens are the same."""

    nodes: Sequence[Node] = ()
    tail: Node | None = None
    tail_tokens: int = 0
    num_alike: int = 0  # whole pages in the tree, even if no row can continue after them

    @property
    def state(self) -> Sequence[int]:
        """Pages with the state of recurrent layers at the end of the match."""
        last = self.tail or (self.nodes[-1] if self.nodes else None)
        return () if last is None else last.state


class PrefixTree:
    """Sequences of tokens under roots. Tokens are as `encode` returns them. The tree keeps the
    pages of its nodes in `pool`."""

    def __init__(self, pool: PagePool, layout: PageLayout) -> None:
        self.nodes: dict[int, Node] = {}  # the node of each page
        self._pool = pool
        self._layout = layout
        self._page_bytes = layout.page_tokens * TOKEN_BYTES
        self._roots: dict[Hashable, Node] = {}

    def root(self, name: Hashable) -> Node:
        """Returns the root with this name, maybe a new one. It is removed with its last page."""
        return self._roots.setdefault(name, Node(name=name))

    def match(self, name: Hashable, tokens: bytes) -> PrefixMatch:
        """Returns the longest beginning of `tokens` after which a row can continue. The tree may
        have more of them, but lack pages within an attention window or a recurrent state there."""
        root, size = self._roots.get(name), self._page_bytes
        if root is None:
            return PrefixMatch()
        nodes = self.walk(name, tokens)
        node = nodes[-1] if nodes else root
        if self._layout.state_pages:
            return self._with_state(root, nodes, tokens)
        if self._layout.has_windows:
            del nodes[self._num_complete(nodes) :]
            node = nodes[-1] if nodes else root
        rest = tokens[len(nodes) * size :][:size]
        tail = node.similar.get(rest[:BEGINNING_BYTES])
        if tail is None or NO_PAGE in tail.pages:
            return PrefixMatch(nodes)
        return PrefixMatch(nodes, tail, num_common(rest, tail.tokens) // TOKEN_BYTES)

    def walk(self, name: Hashable, tokens: bytes) -> list[Node]:
        """Returns the nodes of the first whole pages of `tokens`, even if they have lost pages."""
        node, nodes, size = self._roots.get(name), list[Node](), self._page_bytes
        for first in range(0, len(tokens) - size + 1, size):
            node = None if node is None else node.children.get(tokens[first : first + size])
            if node is None:
                break
            nodes.append(node)
        return nodes

    def num_held(self, name: Hashable, pages: Iterable[bytes]) -> int:
        """Returns how many of these whole pages, from the first on, rows hold already, in the first
        group of layers without a window."""
        node, count = self._roots.get(name), 0
        group = self._layout.windows.index(None)
        for tokens in pages:
            node = None if node is None else node.children.get(tokens)
            if node is None or not self._pool.is_held(node.pages[group]):
                break
            count += 1
        return count

    def seal(self, parent: Node, tokens: bytes, pages: Sequence[int]) -> Node:
        """Returns the node for `tokens` after `parent`, which is a root or held by a row.

        A new node keeps `pages`; an existing one keeps only those that it lacks. If the most recent
        similar node begins with `tokens`, that node is returned instead of a new tail. If `tokens`
        begin with a shorter tail, the new node replaces it.
        """
        node = parent.children.get(tokens)
        if node is None:
            similar = parent.similar.get(tokens[:BEGINNING_BYTES])
            is_begun = similar is not None and similar.tokens.startswith(tokens)
            if similar is not None and is_begun and not self._layout.state_pages:
                return similar
            node = Node(tokens, [NO_PAGE] * len(pages), parent)
            parent.children[tokens] = parent.similar[tokens[:BEGINNING_BYTES]] = node
            if similar is not None and tokens.startswith(similar.tokens):
                self.cut(similar)
        for group, page in enumerate(pages):
            if node.pages[group] == NO_PAGE != page:
                self._keep(node, group, page)
        return node

    def keep_state(self, node: Node, pages: Sequence[int]) -> None:
        """Keep `pages`, which a row holds, as the recurrent state of a node that has none."""
        node.state = [*pages]
        for page in pages:
            self.nodes[page] = node
            self._pool.keep(page)
        if node.parent is not None and len(node.tokens) < self._page_bytes:
            node.parent.tail_bytes.add(len(node.tokens))

    def touch(self, node: Node) -> None:
        """Mark the node as the most recently used of its siblings that begin alike."""
        assert node.parent is not None, "nobody uses a root"
        node.parent.similar[node.tokens[:BEGINNING_BYTES]] = node

    def move(self, node: Node, page: int) -> None:
        """Let the node keep `page`, a copy of its page that a row holds, instead of its own."""
        if [page] != node.pages:
            self._forget(node, 0)
            self._keep(node, 0, page)

    def take(self) -> int:
        """Take a page for a row. At least one page must be free or cached."""
        while (page := self._pool.take()) is None:
            has_evicted = self.evict()
            assert has_evicted, "a cached page can be evicted"
        return page

    def evict(self) -> bool:
        """Evict the cached page that was dropped first, and the nodes that need it. Returns False
        if no page is cached.

        Rows drop their last pages first, so conversations are evicted from their end, and those
        that have been idle longest go first.
        """
        page = self._pool.oldest_cached
        if page is None:
            return False
        node = self.nodes[page]
        if page in node.state:
            self._forget_state(node)
            return True
        group = node.pages.index(page)
        if self._layout.windows[group] is None:
            self.cut(node)
        else:
            self._forget(node, group)
            self._prune(node)
        return True

    def cut(self, node: Node) -> None:
        """Remove a node that no row holds, and all its descendants."""
        nodes = [node]
        for each in nodes:
            nodes.extend(each.children.values())
        for each in reversed(nodes):
            for group, page in enumerate(each.pages):
                if page != NO_PAGE:
                    self._forget(each, group)
            self._forget_state(each)
            self._prune(each)

    def _with_state(self, root: Node, nodes: list[Node], tokens: bytes) -> PrefixMatch:
        """Returns the longest beginning of `tokens` with a recurrent state at its end."""
        num_alike = len(nodes)
        while True:
            node, first = nodes[-1] if nodes else root, len(nodes) * self._page_bytes
            is_complete = self._num_complete(nodes) == len(nodes)
            for size in sorted(node.tail_bytes, reverse=True) if is_complete else ():
                tail = node.children.get(tokens[first : first + size])
                if tail is not None and tail.state and NO_PAGE not in tail.pages:
                    return PrefixMatch(nodes, tail, size // TOKEN_BYTES, num_alike)
            if not nodes or (is_complete and node.state):
                return PrefixMatch(nodes, num_alike=num_alike)
            nodes.pop()

    def _num_complete(self, nodes: Sequence[Node]) -> int:
        """Returns the largest number of leading nodes after which no window lacks a page."""
        best, lengths = 0, [0] * len(self._layout.windows)  # consecutive pages up to this node
        for count, node in enumerate(nodes, 1):
            lengths = [
                0 if page == NO_PAGE else length + 1
                for page, length in zip(node.pages, lengths, strict=True)
            ]
            seen = self._layout.first_seen(count * self._layout.page_tokens)
            if all(count - first <= length for first, length in zip(seen, lengths, strict=True)):
                best = count
        return best

    def _keep(self, node: Node, group: int, page: int) -> None:
        node.pages[group] = page
        self.nodes[page] = node
        self._pool.keep(page)

    def _forget(self, node: Node, group: int) -> None:
        page, node.pages[group] = node.pages[group], NO_PAGE
        del self.nodes[page]
        self._pool.forget(page)

    def _forget_state(self, node: Node) -> None:
        pages, node.state = node.state, []
        for page in pages:
            del self.nodes[page]
            self._pool.forget(page)

    def _prune(self, node: Node) -> None:
        """Remove a node if it has neither pages nor children, then its parents likewise."""
        while node.parent is not None and not node.children and {*node.pages} == {NO_PAGE}:
            parent, beginning = node.parent, node.tokens[:BEGINNING_BYTES]
            del parent.children[node.tokens]
            if parent.similar.get(beginning) is node:
                del parent.similar[beginning]
            node = parent
        if node.parent is None and not node.children:
            self._roots.pop(node.name, None)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns how many leading entries are the same. Both sequences must have the same type."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is faster than comparing entries
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
