"""A memory that remembers which tokens were written where."""

from collections.abc import Hashable, Sequence

from inference_api.core.state.bound_pages import BoundRowPages
from inference_api.core.state.row_pages import Reuse, RowPages
from inference_api.runner import PageLayout

PAGE_TOKENS = 12
Written = tuple[Hashable, tuple[int, ...]]  # the root, and all tokens up to the one at a place


class FakeMemory:
    def __init__(self, layout: PageLayout) -> None:
        self.layout = layout
        self.tables: dict[int, list[int]] = {}
        self.contents: list[dict[int, Written]] = [{} for _ in range(layout.num_pages)]
        self.copies: list[tuple[int, int]] = []
        self.given_back: list[int] = []

    def place(self, row: int, first: int, pages: Sequence[int]) -> None:
        table = self.tables.setdefault(row, [])
        assert first <= len(table), "a table has no holes"
        table[first : first + len(pages)] = pages

    def copy_page(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        self.contents[target] = dict(self.contents[source])

    def give_back(self, pages: Sequence[int]) -> None:
        self.given_back += pages
        for page in pages:
            self.contents[page] = {}

    def write(self, row: int, position: int, written: Written) -> int:
        """Returns the page that was written."""
        index, offset = divmod(position, PAGE_TOKENS)
        page = self.tables[row][index]
        self.contents[page][offset] = written
        return page

    def read(self, row: int, position: int) -> Written | None:
        index, offset = divmod(position, PAGE_TOKENS)
        return self.contents[self.tables[row][index]].get(offset)


def make_pages(
    num_pages: int, max_rows: int, reuse: Reuse = "all", is_bound: bool = False
) -> tuple[RowPages, FakeMemory]:
    layout = PageLayout(num_pages, PAGE_TOKENS, 1, is_bound)
    memory = FakeMemory(layout)
    kind = BoundRowPages if is_bound else RowPages
    return kind(memory, layout, max_rows, reuse), memory
