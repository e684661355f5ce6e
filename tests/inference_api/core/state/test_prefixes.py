"""What was computed is found by its tokens, and what was used last is evicted last."""

from collections.abc import Iterable, Sequence

from inference_api.core.state.pool import PagePool
from inference_api.core.state.prefixes import Node, PrefixTree, encode
from inference_api.runner import PageLayout

PAGE_TOKENS = 12
ONES, TWOS, THREES = (1,) * PAGE_TOKENS, (2,) * PAGE_TOKENS, (3,) * PAGE_TOKENS


class Tree(PrefixTree):
    """A row seals each path, and ends."""

    def __init__(self, num_pages: int = 100) -> None:
        self.pool = PagePool(num_pages)
        super().__init__(self.pool, PageLayout(num_pages, PAGE_TOKENS, 1))

    def add(self, tokens: Sequence[int], name: str = "model") -> list[Node]:
        nodes: list[Node] = []
        for first in range(0, len(tokens), PAGE_TOKENS):
            page = self.pool.take()
            assert page is not None
            part = encode(tokens[first : first + PAGE_TOKENS])
            node = self.seal(nodes[-1] if nodes else self.root(name), part, [page])
            if len(node.tokens) < len(encode(ONES)):
                self.touch(node)
            else:
                nodes.append(node)
                self.pool.share(*node.pages)
            self.pool.drop(page)
        self.let_go(nodes)
        return nodes

    def let_go(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.touch(node)
        for node in reversed(nodes):
            self.pool.drop(*node.pages)

    def found(self, tokens: Sequence[int], name: str = "model") -> tuple[int, int]:
        """Whole pages, and tokens of one more."""
        match = self.match(name, encode(tokens))
        return len(match.nodes), match.tail_tokens


def evicted(tree: Tree) -> Iterable[int]:
    """Pages, in the order in which they are evicted."""
    while tree.nodes:
        before = set(tree.nodes)
        assert tree.evict()
        yield from before - set(tree.nodes)


def pages_of(*nodes: Node) -> Sequence[int]:
    return [page for node in nodes for page in node.pages]


def test_whole_pages_are_found_under_their_root() -> None:
    tree = Tree()
    nodes = tree.add(ONES + TWOS)
    assert tree.match("model", encode(ONES + TWOS + THREES)).nodes == nodes
    assert tree.found(ONES + THREES) == (1, 0)
    assert tree.found(TWOS) == (0, 0)
    assert tree.found(ONES, "adapter") == (0, 0)


def test_the_beginning_of_a_page_is_found_from_eight_tokens_on() -> None:
    tree = Tree()
    tree.add(ONES + TWOS)
    assert tree.found(ONES + TWOS[:8]) == (1, 8)
    assert tree.found(ONES + TWOS[:9] + THREES) == (1, 9)
    assert tree.found(ONES + TWOS[:7] + THREES) == (1, 0)
    assert tree.found(ONES[:10]) == (0, 10)


def test_a_tail_is_found_as_far_as_it_goes() -> None:
    tree = Tree()
    tree.add(ONES + TWOS[:10])
    assert tree.found(ONES + TWOS + THREES) == (1, 10)
    assert tree.found(ONES + TWOS[:8]) == (1, 8)


def test_of_pages_that_begin_alike_the_one_used_last_is_found() -> None:
    tree = Tree()
    tree.add(TWOS[:9] + ONES[:3])
    tree.add(TWOS)
    assert tree.found(TWOS[:9] + ONES[:2]) == (0, 9)
    tree.let_go(_held(tree, TWOS[:9] + ONES[:3]))
    assert tree.found(TWOS[:9] + ONES[:2]) == (0, 11)


def test_equal_tokens_are_one_node() -> None:
    tree = Tree()
    assert tree.add(ONES) == tree.add(ONES)
    assert (len(tree.nodes), tree.pool.num_cached) == (1, 1)


def test_a_tail_takes_the_place_of_a_shorter_one() -> None:
    tree = Tree()
    tree.add(ONES + TWOS[:8])
    tree.add(ONES + TWOS[:10])
    assert (tree.found(ONES + TWOS), len(tree.nodes)) == ((1, 10), 2)
    tree.add(ONES + TWOS[:9])
    assert (tree.found(ONES + TWOS), len(tree.nodes)) == ((1, 10), 2)
    tree.add(ONES + TWOS)
    assert (tree.found(ONES + TWOS), len(tree.nodes)) == ((2, 0), 2)
    tree.add(ONES + TWOS[:9])
    assert (tree.found(ONES + TWOS), len(tree.nodes)) == ((2, 0), 2)


def test_a_root_outlives_the_only_tail_it_has() -> None:
    tree = Tree()
    tree.add(ONES[:8])
    tree.add(ONES)
    assert tree.found(ONES) == (1, 0)


def test_a_root_is_gone_with_its_last_page() -> None:
    tree = Tree()
    tree.add(ONES, "salt")
    assert tree.evict()
    assert not tree._roots
    assert not tree.evict()


def test_an_idle_conversation_goes_whole_before_a_fresher_one_loses_its_end() -> None:
    tree = Tree()
    shared, idle = tree.add(ONES + TWOS)
    _, fresh, end = tree.add(ONES + THREES + ONES)
    order = pages_of(idle, end, fresh, shared)
    assert list(evicted(tree)) == order


def test_what_is_used_again_is_evicted_later() -> None:
    tree = Tree()
    (first,), (second,) = tree.add(ONES), tree.add(TWOS)
    tree.let_go(_held(tree, ONES))
    order = pages_of(second, first)
    assert list(evicted(tree)) == order


def test_what_a_row_holds_is_not_evicted() -> None:
    tree = Tree()
    tree.add(ONES + TWOS)
    nodes = _held(tree, ONES)
    assert tree.evict()
    assert not tree.evict()
    tree.let_go(nodes)
    assert tree.evict()


def test_a_leaf_that_grew_is_not_evicted_before_its_end() -> None:
    tree = Tree()
    tree.add(ONES)
    first, end = tree.add(ONES + TWOS)
    order = pages_of(end, first)
    assert list(evicted(tree)) == order


def test_a_node_is_cut_with_all_that_follows_it() -> None:
    tree = Tree()
    tree.add(ONES + TWOS + THREES)
    first, *_ = tree.add(ONES + THREES)
    (other,) = tree.add(TWOS)
    tree.cut(first)
    [page] = other.pages
    assert tree.nodes == {page: other}
    assert list(evicted(tree)) == [page]
    assert tree.pool.num_free == tree.pool.num_pages


def _held(tree: Tree, tokens: Sequence[int]) -> Sequence[Node]:
    nodes = tree.match("model", encode(tokens)).nodes
    for node in nodes:
        tree.pool.share(*node.pages)
    return nodes
