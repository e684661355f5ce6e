"""What a model's prefix tree has on disk, and what of it goes there. Decode thread only."""

import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple, Protocol

from inference_api.core.state.page_folder import PageFolder, PageRecord
from inference_api.core.state.pool import PagePool
from inference_api.core.state.prefixes import GONE, TOKEN_BYTES, Node, PrefixTree
from inference_api.runner import PageLayout

READ_BYTES = 2**23  # so much is read at once, or a page more
PREPARED_BYTES = 2**27  # free pages that have memory already
READ_WAIT_S = 0.01  # a turn without work waits so long for it
MAX_WAIT_S = 5.0  # nothing waits longer for it
WRITTEN_BYTES = 2**21  # a turn hands so much to the writer, or a page more


class PageMemory(Protocol):
    def view_page(self, page: int) -> memoryview:
        """Returns the memory of a page."""


class Disk(NamedTuple):
    """Where a model's pages are kept, and what tells them from those of any other model."""

    folder: PageFolder
    fingerprint: bytes


class Preparing(NamedTuple):
    """Pages of the pool that are given memory."""

    taken: Sequence[int]
    is_done: Future[bool]


class StoredPage(NamedTuple):
    """A page of a prompt that is on disk: which one, and the pages to read of its record."""

    number: int
    tokens: bytes
    key: bytes
    parts: int  # what the record has
    groups: Sequence[bool]  # for each, whether it is read
    places: Sequence[int]  # where these pages are in the record, and those of its state


class Read(NamedTuple):
    """A page whose record is being read into these pages of the pool."""

    page: StoredPage
    taken: Sequence[int]
    is_there: Future[bool]


class ReadAhead(NamedTuple):
    """What is being read of a prompt, after the nodes that it had in the tree."""

    root: Hashable
    tokens: bytes
    held: Sequence[int]  # pages of these nodes, so that none is evicted meanwhile
    until_s: float  # nobody waits longer, for the disk may be stuck
    reads: Sequence[Read]
    ahead: deque[StoredPage]  # what a row waits for

    @property
    def left_s(self) -> float:
        return max(self.until_s - time.monotonic(), 0.0)


class StoredPages:
    """Reads and writes nodes of `tree`, with the states after them: whole pages after each request,
    and tails when the server stops, because each turn of a chat makes another one.

    A node's key is a hash of the model's fingerprint, of the root's name and of all tokens up to
    the node's end.
    """

    def __init__(
        self, disk: Disk, memory: PageMemory, layout: PageLayout, tree: PrefixTree, pool: PagePool
    ) -> None:
        self._folder, self._fingerprint = disk
        self._memory, self._layout, self._tree, self._pool = memory, layout, tree, pool
        self._size = layout.page_tokens * TOKEN_BYTES
        self._wanted: OrderedDict[Node, None] = OrderedDict()
        self._reading: ReadAhead | None = None  # one at a time
        self._preparing: Preparing | None = None
        self._most_touched = 0  # pages of the pool that had memory at once
        self._read_tokens = 0

    def ahead(self, root: Hashable, tokens: bytes) -> deque[StoredPage]:
        """Returns the pages to read, after those in the tree, so that a row can continue after the
        last of them."""
        nodes = self._tree.walk(root, tokens)
        key = self._key(nodes[-1]) if nodes else self._root_key(root)
        found: list[tuple[bytes, bytes, int]] = []
        for page in _pages(tokens, len(nodes) * self._size, self._size):
            following = _following(key, page)
            parts = self._folder.parts(following)
            if parts is None:
                break
            key = following
            found.append((page, key, parts))
        there = [self._parts(node) for node in nodes] + [parts for *_, parts in found]
        if self._is_whole(there) and (tail := self._tail(root, tokens, len(there), key)):
            return deque([*self._to_read(len(nodes), found, to_continue=False), tail])
        while found and not self._can_continue(there):
            found.pop()
            there.pop()
        return self._to_read(len(nodes), found)

    def read(self, root: Hashable, tokens: bytes, ahead: deque[StoredPage]) -> None:
        """Have pages that `ahead` has returned for these tokens read, the first ones first. Those
        that are in the tree leave `ahead`. Clears it if one cannot be read, or if those of another
        prompt are read for too long."""
        if not ahead:
            return
        self.settle()
        nodes = self._tree.walk(root, tokens)
        while ahead and ahead[0].number < len(nodes):
            ahead.popleft()
        if not ahead:
            return
        if self._reading is not None:
            if not self._reading.left_s:
                ahead.clear()
            return
        held = [number for node in nodes for number in _pages_of(node)]
        for number in held:
            self._pool.share(number)
        reads = self._start(ahead) if ahead[0].number == len(nodes) else ()
        if reads:
            until_s = time.monotonic() + MAX_WAIT_S
            self._reading = ReadAhead(root, tokens, held, until_s, reads, ahead)
        else:
            self._drop(held)
            ahead.clear()

    def settle(self, wait_s: float = 0.0) -> None:
        """Bring what was read into the tree, once all of it was. `wait_s` is how long to wait."""
        if (reading := self._reading) is None:
            return
        jobs = [read.is_there for read in reading.reads]
        if wait_s:
            self._folder.wait(jobs, wait_s)
        if not all(job.done() for job in jobs):
            return
        self._reading = None
        nodes = self._tree.walk(reading.root, reading.tokens)
        for page, taken, job in reading.reads:
            if page.number > len(nodes) or not job.result():
                reading.ahead.clear()
                break
            parent = nodes[page.number - 1] if page.number else self._tree.root(reading.root)
            nodes[page.number :] = [self._bring(parent, page, taken)]
            self._read_tokens += len(page.tokens) // TOKEN_BYTES
            if reading.ahead and reading.ahead[0] is page:
                reading.ahead.popleft()
        self._drop([*reading.held, *(number for read in reading.reads for number in read.taken)])

    def finish(self) -> None:
        """Wait until nothing is read or prepared, so that no page is held for it."""
        if self._reading is not None:
            self.settle(self._reading.left_s)
        if self._preparing is not None:
            self._folder.wait([self._preparing.is_done], MAX_WAIT_S)
            self._end_preparing()

    def prepare(self) -> bool:
        """Have memory given to a few pages before they are read into: this may take longer than to
        read them. No more than PREPARED_BYTES at a time, and none once any was given back, because
        then memory is scarce. Returns whether to call it soon again."""
        self._end_preparing()
        pool, page_bytes = self._pool, self._layout.page_bytes
        is_growing = pool.num_touched >= self._most_touched
        self._most_touched = max(self._most_touched, pool.num_touched)
        is_busy = self._preparing is not None or self._reading is not None
        if not is_busy and is_growing and len(self._folder):
            missing_bytes = min(PREPARED_BYTES - pool.num_freed * page_bytes, READ_BYTES)
            taken = pool.take_untouched(-(-missing_bytes // page_bytes))
            if taken:
                job = self._folder.prepare([*map(self._memory.view_page, taken)])
                self._preparing = Preparing(taken, job)
        return self._preparing is not None

    def take_read_tokens(self) -> int:
        """Returns how many tokens were read since the last call."""
        num_tokens, self._read_tokens = self._read_tokens, 0
        return num_tokens

    def want(self, nodes: Sequence[Node]) -> None:
        """Have the nodes of a prompt written, or counted as used, by calls of `write`: the first
        one last, so that the folder removes it last. Without it no other can be read."""
        for node in reversed(nodes):
            self._wanted[node] = None
            self._wanted.move_to_end(node)
        while len(self._wanted) > self._layout.num_pages:
            self._wanted.popitem(last=False)

    def write(self, timeout_s: float = 0.0) -> bool:
        """Bring what was read into the tree, and hand nodes to the folder's writer, up to
        WRITTEN_BYTES or until it has enough. Returns whether there are more. `timeout_s` is how
        long to wait for the writer."""
        self.settle()
        num_bytes = 0
        while self._wanted and num_bytes < WRITTEN_BYTES:
            node, _ = self._wanted.popitem(last=False)
            parts, key = self._parts(node), self._key(node)
            written = self._folder.parts(key) or 0
            if parts | written == written:  # also of a node that was evicted
                self._folder.use(key)
                continue
            content = b"".join(map(self._memory.view_page, _pages_of(node)))
            if not self._folder.put(PageRecord(key, parts, content), timeout_s):
                self._wanted[node] = None
                self._wanted.move_to_end(node, last=False)
                break
            num_bytes += len(content)
        return bool(self._wanted)

    def flush(self, seconds: float) -> None:
        """Write all nodes, and tails, as far as so much time suffices."""
        for node in dict.fromkeys(self._tree.nodes.values()):
            if len(node.tokens) < self._size:
                self.want(_path(node))
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self.write(left_s):
            pass

    def close(self) -> None:
        """Have the folder end its threads."""
        self.finish()
        self._folder.close()

    def _end_preparing(self) -> None:
        if self._preparing is not None and self._preparing.is_done.done():
            self._drop(self._preparing.taken)
            self._preparing = None

    def _start(self, ahead: Iterable[StoredPage]) -> Sequence[Read]:
        """Have the first READ_BYTES of these read, as far as there is room for them."""
        reads, num_bytes = list[Read](), 0
        for page in ahead:
            has_room = len(page.places) <= self._pool.num_free + self._pool.num_cached
            if num_bytes >= READ_BYTES or not has_room:
                break
            taken = [self._tree.take() for _ in page.places]
            reads.append(Read(page, taken, self._read(page, taken)))
            num_bytes += len(taken) * self._layout.page_bytes
        return reads

    def _read(self, page: StoredPage, taken: Sequence[int]) -> Future[bool]:
        """Have a page's record read into these pages of the pool."""
        layout = self._layout
        has_state, of_groups = divmod(page.parts, 1 << layout.num_groups)
        num_pages = of_groups.bit_count() + has_state * layout.state_pages
        unneeded = bytearray(layout.page_bytes if len(taken) < num_pages else 0)
        views = [memoryview(unneeded)] * num_pages
        for place, number in zip(page.places, taken, strict=True):
            views[place] = self._memory.view_page(number)
        return self._folder.read(page.key, page.parts, views)

    def _bring(self, parent: Node, page: StoredPage, taken: Sequence[int]) -> Node:
        """Returns the node of a page that was read. It may be there by now, or a longer tail."""
        numbers = iter(taken)
        pages = [next(numbers) if is_read else GONE for is_read in page.groups]
        node = self._tree.seal(parent, page.tokens, pages)
        if node.tokens == page.tokens:
            node.key = page.key
            if not node.state and (state := [*numbers]):
                self._tree.keep_state(node, state)
        return node

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in reversed(numbers):  # the first pages are evicted last
            self._pool.drop(number)

    def _parts(self, node: Node) -> int:
        """Returns a bit for each group whose page the node has, and one for its state."""
        bits = [page != GONE for page in node.pages] + [bool(node.state)]
        return sum(bit << place for place, bit in enumerate(bits))

    def _can_continue(self, parts: Sequence[int]) -> bool:
        """Returns whether a row can continue after pages that have these parts."""
        has_state = not self._layout.state_pages or parts[-1] >> self._layout.num_groups & 1
        return bool(has_state) and self._is_whole(parts)

    def _is_whole(self, parts: Sequence[int]) -> bool:
        """Returns whether no window lacks a page after pages that have these parts."""
        layout, end = self._layout, len(parts)
        first = layout.first_seen(end * layout.page_tokens)
        return all(
            parts[index] >> group & 1
            for group, begin in enumerate(first)
            for index in range(begin, end)
        )

    def _tail(self, root: Hashable, tokens: bytes, number: int, key: bytes) -> StoredPage | None:
        """Returns the longest tail after so many pages, if the tree has no longer one. `key` is
        that of these pages."""
        layout, match = self._layout, self._tree.match(root, tokens)
        known = match.tail_tokens * TOKEN_BYTES if len(match.nodes) == number else 0
        rest = tokens[number * self._size :][: self._size - TOKEN_BYTES]
        all_parts = (1 << layout.num_groups + bool(layout.state_pages)) - 1
        for end in range(len(rest), known, -TOKEN_BYTES):
            following = _following(key, rest[:end])
            if self._folder.parts(following) == all_parts:
                is_read = [True] * layout.num_groups
                places = range(layout.num_groups + layout.state_pages)
                return StoredPage(number, rest[:end], following, all_parts, is_read, places)
        return None

    def _to_read(
        self, first: int, found: Sequence[tuple[bytes, bytes, int]], *, to_continue: bool = True
    ) -> deque[StoredPage]:
        """Returns what is needed of pages, the first of which has this index in the prompt.
        `to_continue` says whether a row continues right after the last."""
        layout, end = self._layout, first + len(found)
        seen = layout.first_seen(end * layout.page_tokens)
        is_all = None not in layout.windows  # else the tree would have nodes without pages
        to_read = deque[StoredPage]()
        for index, (tokens, key, parts) in enumerate(found, first):
            there = [bool(parts >> group & 1) for group in range(layout.num_groups)]
            read = [has and (is_all or index >= at) for has, at in zip(there, seen, strict=True)]
            places = [sum(there[:group]) for group, is_read in enumerate(read) if is_read]
            if to_continue and index == end - 1:
                places += range(sum(there), sum(there) + layout.state_pages)
            to_read.append(StoredPage(index, tokens, key, parts, read, places))
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


def _path(node: Node) -> Sequence[Node]:
    """Returns the nodes of a prompt that ends with this one."""
    path = [node]
    while (parent := path[-1].parent) is not None and parent.parent is not None:
        path.append(parent)
    return path[::-1]


def _pages_of(node: Node) -> Sequence[int]:
    """Returns the pages that a node has, in the order of its record."""
    return [*(page for page in node.pages if page != GONE), *node.state]


def _pages(tokens: bytes, first: int, size: int) -> Iterable[bytes]:
    """Yields the whole pages of tokens from a byte on."""
    return (tokens[at : at + size] for at in range(first, len(tokens) - size + 1, size))


def _following(key: bytes, tokens: bytes) -> bytes:
    """Returns the key of tokens that follow those of `key`."""
    return sha256(key + tokens).digest()
