"""The prefix tree: the pages of tokens that were computed, each behind those it follows.

Decode thread only.
"""

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from inference_api.core.state.pool import PagePool

MIN_REUSED_TOKENS = 8  # fewer are as soon computed as copied
TOKEN_BYTES = array("i").itemsize
BEGINNING_BYTES = MIN_REUSED_TOKENS * TOKEN_BYTES


def encode(tokens: Sequence[int]) -> bytes:
    """Returns the tokens as the tree has them, TOKEN_BYTES for each."""
    return array("i", tokens).tobytes()


@dataclass(slots=True, eq=False)
class Node:
    """A page and its tokens, which follow those of `parent`. A root has neither page nor tokens.

    With fewer tokens than a page has room for it is a *tail*: the end of a request. Nothing follows
    a tail, and no row holds it: who goes on from there copies its page.
    """

    tokens: bytes = b""
    page: int = -1
    parent: "Node | None" = None
    name: Hashable = None  # a root's key
    children: dict[bytes, "Node"] = field(default_factory=dict)
    similar: dict[bytes, "Node"] = field(default_factory=dict)
    """The child used last of those that begin with the same MIN_REUSED_TOKENS tokens."""
    num_rows: int = 0  # rows that hold it; they hold all that it follows
    used: int = 0  # the time of the last use


class PrefixMatch(NamedTuple):
    """Whole pages, and a node after them that begins like the rest, with how many tokens."""

    nodes: Sequence[Node] = ()
    tail: Node | None = None
    tail_tokens: int = 0


class PrefixTree:
    """Sequences of tokens under roots, such as one for each model and adapter.

    Tokens are given as `encode` returns them. The tree keeps the pages of its nodes in `pool`.
    """

    def __init__(self, pool: PagePool, page_tokens: int) -> None:
        self.nodes: dict[int, Node] = {}  # the node of each page
        self._pool = pool
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._roots: dict[Hashable, Node] = {}
        self._clock = 0  # counts uses, so that no two have the same time
        self._leaves: list[tuple[int, Node]] = []  # a heap, by `used`; some are stale

    def root(self, name: Hashable) -> Node:
        """Returns the root to `seal` first pages under. It is gone with the last of them."""
        return self._roots.setdefault(name, Node(name=name))

    def match(self, name: Hashable, tokens: bytes) -> PrefixMatch:
        """Returns what the tree has of the beginning of `tokens`."""
        node, size = self._roots.get(name), self._page_bytes
        if node is None:
            return PrefixMatch()
        nodes: list[Node] = []
        for first in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tokens[first : first + size])
            if child is None:
                break
            nodes.append(child)
            node = child
        rest = tokens[len(nodes) * size :][:size]
        tail = node.similar.get(rest[:BEGINNING_BYTES])
        return PrefixMatch(nodes, tail, 0 if tail is None else _num_common(rest, tail.tokens))

    def num_held(self, name: Hashable, pages: Iterable[bytes]) -> int:
        """Returns how many of the first of these whole pages rows hold."""
        node, count = self._roots.get(name), 0
        for tokens in pages:
            node = None if node is None else node.children.get(tokens)
            if node is None or not node.num_rows:
                break
            count += 1
        return count

    def seal(self, parent: Node, tokens: bytes, page: int) -> Node:
        """Returns the node of these tokens after `parent`, which a row holds or is a root.

        Where there is none, a new one keeps `page`. A tail may be there already as the beginning
        of another node, and takes the place of one that is shorter.
        """
        if (node := parent.children.get(tokens)) is not None:
            return node
        similar = parent.similar.get(tokens[:BEGINNING_BYTES])
        if similar is not None and similar.tokens.startswith(tokens):
            return similar
        node = Node(tokens, page, parent)
        parent.children[tokens] = parent.similar[tokens[:BEGINNING_BYTES]] = node
        self.nodes[page] = node
        self._pool.keep(page)
        if similar is not None and tokens.startswith(similar.tokens):
            self._remove(similar)
        return node

    def touch(self, node: Node) -> None:
        """The node is the one used last."""
        self._clock += 1
        node.used = self._clock
        assert node.parent is not None, "nobody uses a root"
        node.parent.similar[node.tokens[:BEGINNING_BYTES]] = node
        self._offer(node)

    def hold(self, nodes: Sequence[Node]) -> None:
        """One more row holds these nodes, and the pages before them."""
        for node in nodes:
            node.num_rows += 1

    def let_go(self, nodes: Sequence[Node]) -> None:
        """One row less holds these nodes, the only ones it held."""
        for node in nodes:
            node.num_rows -= 1
            self.touch(node)

    def move(self, node: Node, page: int) -> None:
        """The node's tokens are in `page` too, which a row holds: keep that one instead."""
        if page != node.page:
            del self.nodes[node.page]
            self._pool.forget(node.page)
            node.page = page
            self.nodes[page] = node
            self._pool.keep(page)

    def evict(self) -> bool:
        """Remove the leaf that was used least recently; False where rows hold all there is.

        The nodes of a row are let go of at once, so that an idle conversation goes whole before a
        fresher one loses its end.
        """
        while self._leaves:
            used, node = heappop(self._leaves)
            if used == node.used and self._can_go(node):
                self._remove(node)
                return True
        return False

    def cut(self, node: Node) -> None:
        """Remove a node that no row holds, and all that follows it."""
        nodes = [node]
        for each in nodes:
            nodes.extend(each.children.values())
        for each in reversed(nodes):
            self._remove(each)

    def _can_go(self, node: Node) -> bool:
        is_there = self.nodes.get(node.page) is node
        return is_there and not node.num_rows and not node.children

    def _offer(self, node: Node) -> None:
        """Have `evict` find this node, if it may go."""
        if not self._can_go(node):
            return
        heappush(self._leaves, (node.used, node))
        if len(self._leaves) > 2 * len(self.nodes) + 64:  # most of them are stale
            leaves = filter(self._can_go, self.nodes.values())
            self._leaves = [(leaf.used, leaf) for leaf in leaves]
            heapify(self._leaves)

    def _remove(self, node: Node) -> None:
        parent, beginning = node.parent, node.tokens[:BEGINNING_BYTES]
        assert parent is not None, "roots go with their last child"
        del parent.children[node.tokens], self.nodes[node.page]
        if parent.similar.get(beginning) is node:
            del parent.similar[beginning]
        self._pool.forget(node.page)
        if parent.parent is None and not parent.children:
            del self._roots[parent.name]
        self._offer(parent)


def _num_common(first: bytes, second: bytes) -> int:
    """Returns how many leading tokens are the same."""
    pairs = zip(memoryview(first).cast("i"), memoryview(second).cast("i"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
