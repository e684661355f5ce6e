"""A memory that remembers which tokens were written where."""

import pickle
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from concurrent.futures import Future

from inference_api.core.state.bound_pages import BoundRowPages
from inference_api.core.state.page_folder import PageFolder, PageRecord
from inference_api.core.state.pool import PagePool
from inference_api.core.state.row_pages import RowPages
from inference_api.runner import PageLayout

PAGE_TOKENS = 12
PAGE_BYTES = 2**14
Written = tuple[Hashable, tuple[int, ...]]  # the root, and all tokens up to the one at a place


class FakeMemory:
    def __init__(self, layout: PageLayout, max_rows: int) -> None:
        self.layout = layout
        self.tables: dict[int, list[int]] = {}  # of rows, the pages of the first group
        self.groups: dict[tuple[int, int], list[int]] = {}  # of rows and groups
        self.contents: list[dict[int, tuple[int, Written]]] = [
            {} for _ in range(layout.states_of(max_rows).start)
        ]
        self.views: dict[int, bytearray] = {}  # of pages, since they were last used
        self.copies: list[tuple[int, int]] = []
        self.given_back: list[int] = []

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        table = self.groups.setdefault((row, group), [])
        if group == 0:
            self.tables[row] = table
        assert first <= len(table), "a table has no holes"
        table[first : first + len(pages)] = pages

    def copy_page(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        self.contents[target] = dict(self.content(source))

    def give_back(self, pages: Sequence[int]) -> None:
        self.given_back += pages
        for page in pages:
            self.contents[page] = {}

    def view_page(self, page: int) -> memoryview:
        content = pickle.dumps(self.content(page)).ljust(self.layout.page_bytes, b".")
        return memoryview(self.views.setdefault(page, bytearray(content)))

    def content(self, page: int) -> dict[int, tuple[int, Written]]:
        if page in self.views:
            self.contents[page] = pickle.loads(self.views.pop(page))
        return self.contents[page]

    def write(self, row: int, position: int, written: Written) -> list[int]:
        """Returns the pages that were written, of each group."""
        index, offset = divmod(position, PAGE_TOKENS)
        pages = [self.groups[row, group][index] for group in range(self.layout.num_groups)]
        for group, page in enumerate(pages):
            self.content(page)[offset] = (group, written)
        return pages

    def write_state(self, row: int, written: Written) -> None:
        """The row's recurrent layers remember these tokens."""
        for page in self.layout.states_of(row):
            self.contents[page] = {0: (page, written)}

    def read_state(self, row: int) -> set[Written]:
        return {self.content(page)[0][1] for page in self.layout.states_of(row)}

    def read(self, row: int, position: int, group: int = 0) -> Written | None:
        index, offset = divmod(position, PAGE_TOKENS)
        content = self.content(self.groups[row, group][index])
        of_group, written = content.get(offset, (group, None))
        return written if of_group == group else None


class FakeFolder(PageFolder):
    """Keeps records in memory, at most `most` of them, and writes them at once. Reads them in
    `wait`, or at once."""

    def __init__(self, reads_at_once: bool = True, most: int = 10**6) -> None:
        self.records: OrderedDict[bytes, PageRecord] = OrderedDict()
        self._most = most
        self._reads_at_once = reads_at_once
        self._waiting: list[tuple[Future[bool], bytes, int, Sequence[memoryview]]] = []
        self._preparing: list[Future[bool]] = []

    def __len__(self) -> int:
        return len(self.records)

    def parts(self, key: bytes) -> int | None:
        return self.records[key].parts if key in self.records else None

    def read(self, key: bytes, parts: int, pages: Sequence[memoryview]) -> Future[bool]:
        job = Future[bool]()
        self._waiting.append((job, key, parts, pages))
        if self._reads_at_once:
            self.wait((), 0)
        return job

    def prepare(self, pages: Sequence[memoryview]) -> Future[bool]:
        self._preparing.append(Future())
        job = self._preparing[-1]
        if self._reads_at_once:
            self.wait((), 0)
        return job

    def wait(self, jobs: Collection[Future[bool]], timeout_s: float) -> None:
        for job in self._preparing:
            job.set_result(True)
        self._preparing.clear()
        for job, key, parts, pages in self._waiting:
            if is_there := self.parts(key) == parts:
                at, content = 0, self.records[key].content
                for page in pages:
                    page[:] = content[at : at + len(page)]
                    at += len(page)
                assert at == len(content)
            job.set_result(is_there)
        self._waiting.clear()

    def put(self, record: PageRecord, timeout_s: float = 0.0) -> bool:
        self.records[record.key] = record
        self.use(record.key)
        if len(self.records) > self._most:
            self.records.popitem(last=False)
        return True

    def use(self, key: bytes) -> None:
        if key in self.records:
            self.records.move_to_end(key)

    def close(self) -> None:
        """It has no thread."""


def make_pages(
    num_pages: int,
    max_rows: int,
    reuses: bool = True,
    is_bound: bool = False,
    windows: Sequence[int | None] = (None,),
    state_pages: int = 0,
    chunk_tokens: int = 1,
) -> tuple[RowPages, FakeMemory]:
    layout = PageLayout(num_pages, PAGE_TOKENS, PAGE_BYTES, is_bound, windows, state_pages)
    memory = FakeMemory(layout, max_rows)
    if is_bound:
        return BoundRowPages(memory, max_rows, reuses, chunk_tokens), memory
    return RowPages(memory, max_rows, reuses), memory


def holders(pool: PagePool, page: int) -> int:
    """Returns how many holders the page has: rows, and the tree."""
    return pool._num_rows[page] + (page in pool._kept)
