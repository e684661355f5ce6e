"""The pages of a model: which are free, and who holds the others.

Decode thread only, but for `num_pages`, `num_free` and `num_cached`.
"""

from collections import OrderedDict


class PagePool:
    """Rows hold pages by `take` and `share`, the prefix tree by `keep`. Unheld ones are free.

    A page is a number. Pages that the tree keeps and no row holds are *cached*. Free pages are
    taken in this order: first the one freed last, then the lowest that was never used, so that
    little memory is touched.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._num_rows = [0] * num_pages  # rows that hold each page
        self._kept: set[int] = set()
        self._cached: OrderedDict[int, None] = OrderedDict()  # first the one dropped first
        self._freed: dict[int, None] = {}  # the last one is taken first, as in the next
        self._untouched = dict.fromkeys(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        return len(self._freed) + len(self._untouched)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def oldest_cached(self) -> int | None:
        """The cached page that no row has held for the longest time."""
        return next(iter(self._cached), None)

    @property
    def num_touched(self) -> int:
        """Pages that were used and not given back: they have memory."""
        return self.num_pages - len(self._untouched)

    def references(self, page: int) -> int:
        """Returns how many hold the page: rows, and the tree."""
        return self._num_rows[page] + (page in self._kept)

    def is_held(self, page: int) -> bool:
        """Returns whether a row holds the page."""
        return self._num_rows[page] > 0

    def take(self) -> int | None:
        """Returns a page that was free and that a row holds now; None where no page is free."""
        free = self._freed or self._untouched
        if not free:
            return None
        page, _ = free.popitem()
        self._num_rows[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more row holds this page, which may have been free."""
        if not self._num_rows[page]:
            if page in self._kept:
                del self._cached[page]
            else:
                del (self._freed if page in self._freed else self._untouched)[page]
        self._num_rows[page] += 1

    def drop(self, page: int) -> None:
        """One row less holds this page."""
        assert self._num_rows[page], "a page is dropped once, by a row that holds it"
        self._num_rows[page] -= 1
        if not self._num_rows[page]:
            if page in self._kept:
                self._cached[page] = None
            else:
                self._freed[page] = None

    def keep(self, page: int) -> None:
        """The tree holds a page that a row holds."""
        assert self._num_rows[page], "what the tree keeps was written by a row"
        self._kept.add(page)

    def forget(self, page: int) -> None:
        """The tree no longer holds this page."""
        self._kept.remove(page)
        if not self._num_rows[page]:
            del self._cached[page]
            self._freed[page] = None

    def give_back(self, num_pages: int) -> list[int]:
        """Returns so many free pages, or as many as have memory: as if they were never used."""
        given_back = [self._freed.popitem()[0] for _ in range(min(num_pages, len(self._freed)))]
        self._untouched.update(dict.fromkeys(given_back))
        return given_back
