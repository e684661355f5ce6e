"""A memory that remembers which tokens were written where."""

import pickle
from collections.abc import Hashable, Sequence

from inference_api.core.state.bound_pages import BoundRowPages
from inference_api.core.state.page_folder import PageFolder, PageRecord
from inference_api.core.state.pool import PagePool
from inference_api.core.state.row_pages import Reuse, RowPages
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
        self.contents[target] = dict(self.contents[source])

    def give_back(self, pages: Sequence[int]) -> None:
        self.given_back += pages
        for page in pages:
            self.contents[page] = {}

    def read_page(self, page: int) -> bytes:
        return pickle.dumps(self.contents[page]).ljust(self.layout.page_bytes, b".")

    def write_page(self, page: int, content: memoryview) -> None:
        self.contents[page] = pickle.loads(content)

    def write(self, row: int, position: int, written: Written) -> list[int]:
        """Returns the pages that were written, of each group."""
        index, offset = divmod(position, PAGE_TOKENS)
        pages = [self.groups[row, group][index] for group in range(self.layout.num_groups)]
        for group, page in enumerate(pages):
            self.contents[page][offset] = (group, written)
        return pages

    def write_state(self, row: int, written: Written) -> None:
        """The row's recurrent layers remember these tokens."""
        for page in self.layout.states_of(row):
            self.contents[page] = {0: (page, written)}

    def read_state(self, row: int) -> set[Written]:
        return {self.contents[page][0][1] for page in self.layout.states_of(row)}

    def read(self, row: int, position: int, group: int = 0) -> Written | None:
        index, offset = divmod(position, PAGE_TOKENS)
        of_group, written = self.contents[self.groups[row, group][index]].get(offset, (group, None))
        return written if of_group == group else None


class FakeFolder(PageFolder):
    """Keeps records in memory, and writes them at once."""

    def __init__(self) -> None:
        self.records: dict[bytes, PageRecord] = {}

    def parts(self, key: bytes) -> int | None:
        return self.records[key].parts if key in self.records else None

    def read(self, key: bytes) -> memoryview | None:
        return memoryview(self.records[key].content) if key in self.records else None

    def put(self, record: PageRecord, timeout_s: float = 0.0) -> bool:
        self.records[record.key] = record
        return True

    def close(self) -> None:
        """It has no thread."""


def make_pages(
    num_pages: int,
    max_rows: int,
    reuse: Reuse = "all",
    is_bound: bool = False,
    windows: Sequence[int | None] = (None,),
    state_pages: int = 0,
) -> tuple[RowPages, FakeMemory]:
    layout = PageLayout(num_pages, PAGE_TOKENS, PAGE_BYTES, is_bound, windows, state_pages)
    memory = FakeMemory(layout, max_rows)
    kind = BoundRowPages if is_bound else RowPages
    return kind(memory, layout, max_rows, reuse), memory


def holders(pool: PagePool, page: int) -> int:
    """Returns how many holders the page has: rows, and the tree."""
    return pool._num_rows[page] + (page in pool._kept)
