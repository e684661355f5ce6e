"""The pool of a model's pages: knows which are free, and which rows hold the others.

Decode thread only, except for `limit`, `num_free` and `num_cached`.
"""

from collections import OrderedDict
from typing import NamedTuple


class PageCounts(NamedTuple):
    """Numbers of pages: held by rows, cached for later prompts, and free."""

    held: int = 0
    cached: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        return sum(self)


NO_PAGES = PageCounts()


class PagePool:
    """Counts the rows that hold each page (`take`, `share`), and knows the tree's pages (`keep`).

    A page is a number. It is *cached* if only the tree holds it, and free if nothing does. `take`
    prefers the page freed last, then the lowest page never used, so that little memory is touched.
    `limit` is how many pages may have memory. It is never lower than the number that have it.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = self.limit = num_pages
        self._num_rows = [0] * num_pages  # for each page, the number of rows that hold it
        self._kept: set[int] = set()
        self._cached: OrderedDict[int, None] = OrderedDict()  # in the order rows dropped them
        self._freed: dict[int, None] = {}  # used as a stack
        self._untouched = dict.fromkeys(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        return self.limit - self.num_touched + len(self._freed)

    @property
    def num_freed(self) -> int:
        """Number of free pages that have memory."""
        return len(self._freed)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def oldest_cached(self) -> int | None:
        """The cached page that rows dropped first, or None."""
        return next(iter(self._cached), None)

    @property
    def num_touched(self) -> int:
        """Number of pages that have memory: used, and not given back."""
        return self.num_pages - len(self._untouched)

    def is_held(self, page: int) -> bool:
        """Returns whether a row holds the page."""
        return self._num_rows[page] > 0

    def take(self) -> int | None:
        """Takes a free page for a row. Returns None if no page is free."""
        if not self.num_free:
            return None
        page, _ = (self._freed or self._untouched).popitem()
        self._num_rows[page] = 1
        return page

    def take_untouched(self, num_pages: int) -> list[int]:
        """Takes up to `num_pages` pages that have no memory yet."""
        room = min(num_pages, self.limit - self.num_touched)
        taken = [self._untouched.popitem()[0] for _ in range(room)]
        for page in taken:
            self._num_rows[page] = 1
        return taken

    def share(self, page: int) -> None:
        """Let one more row hold this page, which may be free so far."""
        if not self._num_rows[page]:
            if page in self._kept:
                del self._cached[page]
            else:
                del (self._freed if page in self._freed else self._untouched)[page]
        self._num_rows[page] += 1

    def drop(self, page: int) -> None:
        """Let one row fewer hold this page."""
        assert self._num_rows[page], "a page is dropped once, by a row that holds it"
        self._num_rows[page] -= 1
        if not self._num_rows[page]:
            if page in self._kept:
                self._cached[page] = None
            else:
                self._freed[page] = None

    def keep(self, page: int) -> None:
        """Let the tree hold a page that a row holds."""
        assert self._num_rows[page], "what the tree keeps was written by a row"
        self._kept.add(page)

    def forget(self, page: int) -> None:
        """Let the tree no longer hold this page."""
        self._kept.remove(page)
        if not self._num_rows[page]:
            del self._cached[page]
            self._freed[page] = None

    def give_back(self, num_pages: int) -> list[int]:
        """Count up to `num_pages` free pages that have memory as never used. Returns these pages,
        so that the caller can release their memory."""
        released = [self._freed.popitem()[0] for _ in range(min(num_pages, len(self._freed)))]
        self._untouched.update(dict.fromkeys(released))
        return released
