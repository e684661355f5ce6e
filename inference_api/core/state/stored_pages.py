"""What a model's prefix tree has on disk, and what of it goes there. Decode thread only."""

import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from inference_api.core.state.page_folder import PageFolder, PageRecord
from inference_api.core.state.pool import PagePool
from inference_api.core.state.prefixes import GONE, TOKEN_BYTES, Node, PrefixTree
from inference_api.runner import PageLayout

READ_BYTES = 2**23  # a turn reads so much of a prompt, or a page more
WRITTEN_BYTES = 2**21  # a turn hands so much to the writer, or a page more


class PageMemory(Protocol):
    def read_page(self, page: int) -> bytes | memoryview:
        """Returns what a page holds, or a view of it."""

    def write_page(self, page: int, content: memoryview) -> None:
        """Fill a page with what another one held."""


class Disk(NamedTuple):
    """Where a model's pages are kept, and what tells them from those of any other model."""

    folder: PageFolder
    fingerprint: bytes


class StoredPage(NamedTuple):
    """A page of a prompt that is on disk: which one, and the pages to read of its record."""

    number: int
    tokens: bytes
    key: bytes
    groups: Sequence[bool]  # for each, whether it is read
    has_state: bool
    places: Sequence[int]  # where these pages are in the record


class StoredPages:
    """Reads and writes nodes of `tree`: those of whole pages, with the states after them.

    A node's key is a hash of the model's fingerprint, of the root's name and of all tokens up to
    the node's end.
    """

    def __init__(
        self,
        disk: Disk,
        memory: PageMemory,
        layout: PageLayout,
        tree: PrefixTree,
        pool: PagePool,
    ) -> None:
        self._folder, self._fingerprint = disk
        self._memory, self._layout, self._tree, self._pool = memory, layout, tree, pool
        self._size = layout.page_tokens * TOKEN_BYTES
        self._wanted: OrderedDict[Node, None] = OrderedDict()
        self._read_tokens = 0

    def ahead(self, root: Hashable, tokens: bytes) -> deque[StoredPage]:
        """Returns the pages to read, after those in the tree, so that a row can continue after the
        last of them."""
        nodes = self._tree.walk(root, tokens)
        key = self._key(nodes[-1]) if nodes else self._root_key(root)
        found: list[tuple[bytes, bytes, int]] = []
        for page in _pages(tokens, len(nodes) * self._size, self._size):
            key = _following(key, page)
            parts = self._folder.parts(key)
            if parts is None:
                break
            found.append((page, key, parts))
        there = [self._parts(node) for node in nodes]
        while found and not self._can_continue([*there, *(parts for *_, parts in found)]):
            found.pop()
        return self._to_read(len(nodes), found)

    def read(self, root: Hashable, tokens: bytes, ahead: deque[StoredPage]) -> None:
        """Bring pages that `ahead` has returned for these tokens into the tree, the first ones
        first, until READ_BYTES are read. Clears `ahead` if one cannot be read."""
        nodes, num_read = self._tree.walk(root, tokens), 0
        for node in nodes:  # so that none is evicted meanwhile
            self._share(node)
        while ahead and num_read * self._layout.page_bytes < READ_BYTES:
            page = ahead.popleft()
            if page.number < len(nodes):  # another row has brought it
                continue
            has_room = len(page.places) <= self._pool.num_free + self._pool.num_cached
            contents = self._contents(page) if has_room and page.number == len(nodes) else None
            if contents is None:
                ahead.clear()
                break
            nodes.append(self._bring(nodes[-1] if nodes else self._tree.root(root), page, contents))
            num_read += len(contents)
            self._read_tokens += self._layout.page_tokens
        for node in reversed(nodes):  # the first pages are evicted last
            self._drop(node)

    def take_read_tokens(self) -> int:
        """Returns how many tokens were read since the last call."""
        num_tokens, self._read_tokens = self._read_tokens, 0
        return num_tokens

    def want(self, nodes: Iterable[Node]) -> None:
        """Have nodes written, by calls of `write`; the deepest last."""
        for node in nodes:
            self._wanted[node] = None
            self._wanted.move_to_end(node)
        while len(self._wanted) > self._layout.num_pages:
            self._wanted.popitem(last=False)

    def write(self, timeout_s: float = 0.0) -> bool:
        """Hand nodes to the folder's writer, up to WRITTEN_BYTES or until it has enough. Returns
        whether there are more. `timeout_s` is how long to wait for the writer."""
        num_bytes = 0
        while self._wanted and num_bytes < WRITTEN_BYTES:
            node, _ = self._wanted.popitem(last=False)
            parts, key = self._parts(node), self._key(node)
            written = self._folder.parts(key) or 0
            if parts | written == written:  # also of a node that was evicted
                continue
            pages = [*(page for page in node.pages if page != GONE), *node.state]
            content = b"".join(map(self._memory.read_page, pages))
            if not self._folder.put(PageRecord(key, parts, content), timeout_s):
                self._wanted[node] = None
                self._wanted.move_to_end(node, last=False)
                break
            num_bytes += len(content)
        return bool(self._wanted)

    def flush(self, seconds: float) -> None:
        """Write all nodes, as far as so much time suffices."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self.write(left_s):
            pass

    def close(self) -> None:
        """Have the folder end its writer."""
        self._folder.close()

    def _contents(self, page: StoredPage) -> Sequence[memoryview] | None:
        """Returns the contents of a page's groups that are read, then of its state. None if its
        file is gone, damaged, or of another layout."""
        content, size = self._folder.read(page.key), self._layout.page_bytes
        if content is None or len(content) % size or len(content) // size <= max(page.places):
            return None
        return [content[place * size : (place + 1) * size] for place in page.places]

    def _bring(self, parent: Node, page: StoredPage, contents: Sequence[memoryview]) -> Node:
        """Returns the node of a page that was read. Its pages count as held."""
        taken = [self._tree.take() for _ in contents]
        for number, content in zip(taken, contents, strict=True):
            self._memory.write_page(number, content)
        numbers = iter(taken)
        pages = [next(numbers) if is_read else GONE for is_read in page.groups]
        node = self._tree.seal(parent, page.tokens, pages)
        node.key = page.key
        if state := [*numbers]:
            self._tree.keep_state(node, state)
        return node

    def _share(self, node: Node) -> None:
        for page in (*node.pages, *node.state):
            if page != GONE:
                self._pool.share(page)

    def _drop(self, node: Node) -> None:
        for page in (*node.pages, *node.state):
            if page != GONE:
                self._pool.drop(page)

    def _parts(self, node: Node) -> int:
        """Returns a bit for each group whose page the node has, and one for its state."""
        bits = [page != GONE for page in node.pages] + [bool(node.state)]
        return sum(bit << place for place, bit in enumerate(bits))

    def _can_continue(self, parts: Sequence[int]) -> bool:
        """Returns whether a row can continue after pages that have these parts."""
        layout, end = self._layout, len(parts)
        if layout.state_pages and not parts[-1] >> layout.num_groups & 1:
            return False
        first = layout.first_seen(end * layout.page_tokens)
        return all(
            parts[index] >> group & 1
            for group, begin in enumerate(first)
            for index in range(begin, end)
        )

    def _to_read(self, first: int, found: Sequence[tuple[bytes, bytes, int]]) -> deque[StoredPage]:
        """Returns what is needed of pages, the first of which has this index in the prompt."""
        layout, end = self._layout, first + len(found)
        seen = layout.first_seen(end * layout.page_tokens)
        is_all = None not in layout.windows  # else the tree would have nodes without pages
        to_read = deque[StoredPage]()
        for index, (tokens, key, parts) in enumerate(found, first):
            there = [bool(parts >> group & 1) for group in range(layout.num_groups)]
            read = [has and (is_all or index >= at) for has, at in zip(there, seen, strict=True)]
            places = [sum(there[:group]) for group, is_read in enumerate(read) if is_read]
            has_state = index == end - 1 and layout.state_pages > 0
            if has_state:
                places += range(sum(there), sum(there) + layout.state_pages)
            to_read.append(StoredPage(index, tokens, key, read, has_state, places))
        return to_read

    def _key(self, node: Node) -> bytes:
        path = [node]
        while not path[-1].key and path[-1].parent is not None:
            path.append(path[-1].parent)
        for each in reversed(path):
            if not each.key:
                parent = each.parent
                each.key = (
                    self._root_key(each.name)
                    if parent is None
                    else _following(parent.key, each.tokens)
                )
        return node.key

    def _root_key(self, name: Hashable) -> bytes:
        return _following(self._fingerprint, repr(name).encode())


def _pages(tokens: bytes, first: int, size: int) -> Iterable[bytes]:
    """Yields the whole pages of tokens from a byte on."""
    return (tokens[at : at + size] for at in range(first, len(tokens) - size + 1, size))


def _following(key: bytes, tokens: bytes) -> bytes:
    """Returns the key of tokens that follow those of `key`."""
    return sha256(key + tokens).digest()
