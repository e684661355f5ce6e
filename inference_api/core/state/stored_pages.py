"""Moves pages between a model's prefix tree and the disk. Decode thread only."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple

from inference_api.core.state.page_folder import PageFolder, PageRecord
from inference_api.core.state.pool import PagePool
from inference_api.core.state.prefixes import NO_PAGE, TOKEN_BYTES, Node, PrefixTree
from inference_api.runner import PageLayout

READ_BYTES = 2**23  # about this much is read at once; the last page may exceed it
PREPARED_BYTES = 2**27  # free pages of this size get memory in advance
READ_WAIT_S = 0.01  # a turn without work waits this long for pages that are being read
MAX_WAIT_S = 5.0  # no request waits longer for a read, because the disk may be stuck
WRITTEN_BYTES = 2**21  # a turn queues about this much to be written; the last page may exceed it


class Disk(NamedTuple):
    """The folder for a model's pages, a fingerprint that no other model has, and a function that
    returns the memory of a page."""

    folder: PageFolder
    fingerprint: bytes
    view_page: Callable[[int], memoryview]


class Preparing(NamedTuple):
    """Pages of the pool that are being given memory."""

    taken: Sequence[int]
    is_done: Future[bool]


class StoredPage(NamedTuple):
    """A page of a prompt that is on disk, and which of its record's pages to read."""

    number: int  # index of the page in the prompt
    tokens: bytes
    key: bytes
    parts: int  # bits of the parts that the record has
    groups: Sequence[bool]  # for each group of layers, whether its page is read
    places: Sequence[int]  # indices in the record of the pages to read, those of its state last


class PageRead(NamedTuple):
    """A page whose record is being read into the pages `taken` from the pool."""

    page: StoredPage
    taken: Sequence[int]
    was_read: Future[bool]


class ReadAhead(NamedTuple):
    """The pages of a prompt that are being read, after the nodes that it had in the tree."""

    root: Hashable
    tokens: bytes
    held: Sequence[int]  # pages of these nodes, held so that none is evicted meanwhile
    until_s: float  # end of the longest wait, because the disk may be stuck
    reads: Sequence[PageRead]
    ahead: deque[StoredPage]  # the pages that a row waits for

    @property
    def left_s(self) -> float:
        return max(self.until_s - time.monotonic(), 0.0)


class StoredPages:
    """Reads and writes nodes of `tree`, with the recurrent states after them. Whole pages are
    written after each request; tails when the server stops, because each turn of a chat makes one.

    A node's key is a hash of the model's fingerprint, the root's name and all tokens up to the
    node's end.
    """

    def __init__(self, disk: Disk, layout: PageLayout, tree: PrefixTree, pool: PagePool) -> None:
        self._folder, self._fingerprint, self._view_page = disk
        self._layout, self._tree, self._pool = layout, tree, pool
        self._size = layout.page_tokens * TOKEN_BYTES
        self._wanted: OrderedDict[Node, None] = OrderedDict()
        self._reading: ReadAhead | None = None  # one at a time
        self._preparing: Preparing | None = None
        self._most_touched = 0  # most pages of the pool that ever had memory at once
        self._read_tokens = 0

    def ahead(self, root: Hashable, tokens: bytes) -> deque[StoredPage]:
        """Returns the pages of a prompt to read from disk, after those in the tree, so that a row
        can continue after the last one."""
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
        all_parts = [self._parts(node) for node in nodes] + [parts for *_, parts in found]
        if self._is_complete(all_parts) and (tail := self._tail(root, tokens, len(all_parts), key)):
            return deque([*self._to_read(len(nodes), found, to_continue=False), tail])
        while found and not self._can_continue(all_parts):
            found.pop()
            all_parts.pop()
        return self._to_read(len(nodes), found)

    def read(self, root: Hashable, tokens: bytes, ahead: deque[StoredPage]) -> None:
        """Begin to read pages of `ahead`, as the method `ahead` has returned it for these tokens.
        Pages that are in the tree leave it. Clears it if a page cannot be read, or if a read for
        another prompt takes longer than MAX_WAIT_S."""
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
        """Bring the pages that were read into the tree, if all reads end within `wait_s`."""
        if (reading := self._reading) is None:
            return
        jobs = [read.was_read for read in reading.reads]
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
        """Wait until no page is being read or prepared, so that none is held for that."""
        if self._reading is not None:
            self.settle(self._reading.left_s)
        if self._preparing is not None:
            self._folder.wait([self._preparing.is_done], MAX_WAIT_S)
            self._end_preparing()

    def prepare(self) -> bool:
        """Have memory given to a few free pages, because doing so may take longer than reading into
        them later. Prepares up to PREPARED_BYTES, but nothing once pages were given back, because
        memory is scarce then. Returns whether to call it again soon."""
        self._end_preparing()
        pool, page_bytes = self._pool, self._layout.page_bytes
        is_growing = pool.num_touched >= self._most_touched
        self._most_touched = max(self._most_touched, pool.num_touched)
        is_busy = self._preparing is not None or self._reading is not None
        if not is_busy and is_growing and len(self._folder):
            missing_bytes = min(PREPARED_BYTES - pool.num_freed * page_bytes, READ_BYTES)
            taken = pool.take_untouched(-(-missing_bytes // page_bytes))
            if taken:
                job = self._folder.prepare([*map(self._view_page, taken)])
                self._preparing = Preparing(taken, job)
        return self._preparing is not None

    def take_read_tokens(self) -> int:
        """Returns how many tokens were read since the last call."""
        num_tokens, self._read_tokens = self._read_tokens, 0
        return num_tokens

    def want(self, nodes: Sequence[Node]) -> None:
        """Let `write` write the nodes of a prompt, or mark them as used. The first one comes last,
        so that the folder removes it last: without it no other one can be read."""
        for node in reversed(nodes):
            self._wanted[node] = None
            self._wanted.move_to_end(node)
        while len(self._wanted) > self._layout.num_pages:
            self._wanted.popitem(last=False)

    def write(self, timeout_s: float = 0.0) -> bool:
        """Bring pages that were read into the tree, and give nodes to the folder's writer, up to
        WRITTEN_BYTES or until its queue stays full for `timeout_s`. Returns whether more wait."""
        self.settle()
        num_bytes = 0
        while self._wanted and num_bytes < WRITTEN_BYTES:
            node, _ = self._wanted.popitem(last=False)
            parts, key = self._parts(node), self._key(node)
            written = self._folder.parts(key) or 0
            if parts | written == written:  # also true if the node was evicted: it has no parts
                self._folder.use(key)
                continue
            content = b"".join(map(self._view_page, _pages_of(node)))
            if not self._folder.put(PageRecord(key, parts, content), timeout_s):
                self._wanted[node] = None
                self._wanted.move_to_end(node, last=False)
                break
            num_bytes += len(content)
        return bool(self._wanted)

    def flush(self, seconds: float) -> None:
        """Write all nodes, tails included, for at most `seconds`."""
        for node in dict.fromkeys(self._tree.nodes.values()):
            if len(node.tokens) < self._size:
                self.want(_path(node))
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self.write(left_s):
            pass

    def close(self) -> None:
        """End the folder's threads."""
        self.finish()
        self._folder.close()

    def _end_preparing(self) -> None:
        if self._preparing is not None and self._preparing.is_done.done():
            self._drop(self._preparing.taken)
            self._preparing = None

    def _start(self, ahead: Iterable[StoredPage]) -> Sequence[PageRead]:
        """Begin to read the first READ_BYTES of these pages, as far as the pool has room."""
        reads, num_bytes = list[PageRead](), 0
        for page in ahead:
            has_room = len(page.places) <= self._pool.num_free + self._pool.num_cached
            if num_bytes >= READ_BYTES or not has_room:
                break
            taken = [self._tree.take() for _ in page.places]
            reads.append(PageRead(page, taken, self._read(page, taken)))
            num_bytes += len(taken) * self._layout.page_bytes
        return reads

    def _read(self, page: StoredPage, taken: Sequence[int]) -> Future[bool]:
        """Begin to read a page's record into the pages `taken` from the pool."""
        layout = self._layout
        has_state, of_groups = divmod(page.parts, 1 << layout.num_groups)
        num_pages = of_groups.bit_count() + has_state * layout.state_pages
        unneeded = bytearray(layout.page_bytes if len(taken) < num_pages else 0)
        views = [memoryview(unneeded)] * num_pages
        for place, number in zip(page.places, taken, strict=True):
            views[place] = self._view_page(number)
        return self._folder.read(page.key, page.parts, views)

    def _bring(self, parent: Node, page: StoredPage, taken: Sequence[int]) -> Node:
        """Returns the node of a page that was read: an existing one, if there is one by now."""
        numbers = iter(taken)
        pages = [next(numbers) if is_read else NO_PAGE for is_read in page.groups]
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
        """Returns bits: one for each group whose page the node has, then one for its state."""
        bits = [page != NO_PAGE for page in node.pages] + [bool(node.state)]
        return sum(bit << place for place, bit in enumerate(bits))

    def _can_continue(self, parts: Sequence[int]) -> bool:
        """Returns whether a row can continue after pages that have these parts."""
        has_state = not self._layout.state_pages or parts[-1] >> self._layout.num_groups & 1
        return bool(has_state) and self._is_complete(parts)

    def _is_complete(self, parts: Sequence[int]) -> bool:
        """Returns whether no window lacks a page after pages that have these parts."""
        layout, end = self._layout, len(parts)
        first = layout.first_seen(end * layout.page_tokens)
        return all(
            parts[index] >> group & 1
            for group, begin in enumerate(first)
            for index in range(begin, end)
        )

    def _tail(self, root: Hashable, tokens: bytes, number: int, key: bytes) -> StoredPage | None:
        """Returns the longest tail on disk after the first `number` pages, whose key is `key`; None
        if there is none, or the tree has one that is as long."""
        layout, match = self._layout, self._tree.match(root, tokens)
        tail_bytes = match.tail_tokens * TOKEN_BYTES if len(match.nodes) == number else 0
        rest = tokens[number * self._size :][: self._size - TOKEN_BYTES]
        all_parts = (1 << layout.num_groups + bool(layout.state_pages)) - 1
        for end in range(len(rest), tail_bytes, -TOKEN_BYTES):
            following = _following(key, rest[:end])
            if self._folder.parts(following) == all_parts:
                is_read = [True] * layout.num_groups
                places = range(layout.num_groups + layout.state_pages)
                return StoredPage(number, rest[:end], following, all_parts, is_read, places)
        return None

    def _to_read(
        self, first: int, found: Sequence[tuple[bytes, bytes, int]], *, to_continue: bool = True
    ) -> deque[StoredPage]:
        """Returns the needed parts of pages that were found from index `first` of a prompt on.
        `to_continue` says whether a row continues right after the last one."""
        layout, end = self._layout, first + len(found)
        seen = layout.first_seen(end * layout.page_tokens)
        is_all = None not in layout.windows  # lest the tree get nodes without any page
        to_read = deque[StoredPage]()
        for index, (tokens, key, parts) in enumerate(found, first):
            present = [bool(parts >> group & 1) for group in range(layout.num_groups)]
            read = [has and (is_all or index >= at) for has, at in zip(present, seen, strict=True)]
            places = [sum(present[:group]) for group, is_read in enumerate(read) if is_read]
            if to_continue and index == end - 1:
                places += range(sum(present), sum(present) + layout.state_pages)
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
    """Returns the nodes from the first one of a prompt to this one."""
    path = [node]
    while (parent := path[-1].parent) is not None and parent.parent is not None:
        path.append(parent)
    return path[::-1]


def _pages_of(node: Node) -> Sequence[int]:
    """Returns the pages that a node has, in the order in which its record has them."""
    return [*(page for page in node.pages if page != NO_PAGE), *node.state]


def _pages(tokens: bytes, first: int, size: int) -> Iterable[bytes]:
    """Yields the whole pages of `tokens` from byte `first` on, `size` bytes each."""
    return (tokens[at : at + size] for at in range(first, len(tokens) - size + 1, size))


def _following(key: bytes, tokens: bytes) -> bytes:
    """Returns the key of the page with `tokens` after the page with `key`."""
    return sha256(key + tokens).digest()
