"""One budget for the pages of all resident members.

Each member has the pages of its guaranteed rows, and may borrow more while memory is free. As soon
as a row, or a member to be loaded, needs memory, other members' cached pages are evicted. If a row
needs still more, the rows admitted last pause. Decode thread only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from inference_api.bundle.residency import Residency
from inference_api.core.rows import RowTable, UserRow
from inference_api.core.state.row_pages import RowPages


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    pages: RowPages
    own_pages: int
    rows: RowTable | None  # None for a draft model
    give_up: Callable[[], None] | None

    @property
    def lent_bytes(self) -> int:
        return (self.pages.limit - self.own_pages) * self.pages.layout.page_bytes

    def num_needed(self, by_row: bool) -> int:
        """Returns how many pages it keeps when pages are called in, by a row or by drafts."""
        if by_row and self.give_up is not None:
            return self.own_pages
        return max(self.own_pages, self.pages.counts.held)

    def unneeded_bytes(self, by_row: bool) -> int:
        return (self.pages.limit - self.num_needed(by_row)) * self.pages.layout.page_bytes


class PageLoans:
    """Limits the pages of members, and reports to `residency` the memory that they borrow."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._accounts: list[_Account] = []

    def add(self, name: str, rows: RowTable, own_pages: int) -> None:
        """Add a member that was loaded. Its own pages must suffice for its longest row."""
        rows.pause_later = self._pause_later
        self._open(_Account(name, rows.pages, own_pages, rows, None))

    def add_draft(
        self, name: str, pages: RowPages, own_pages: int, give_up: Callable[[], None]
    ) -> None:
        """Add a member's draft model. `give_up` has it drop its pages if rows need the memory."""
        self._open(_Account(name, pages, own_pages, None, give_up))

    def remove(self, name: str) -> None:
        """Remove a member that is to be unloaded and has no busy rows."""
        for account in [each for each in self._accounts if each.name == name]:
            account.pages.borrow = None
            self._limit(account, account.own_pages)
            self._accounts.remove(account)

    def call_in(self) -> None:
        """Take back from all members the borrowed pages that no row holds."""
        for account in self._accounts:
            self._call_in(account, by_row=True)

    def _open(self, account: _Account) -> None:
        account.pages.borrow = partial(self._lend, account)
        account.pages.limit_to(account.own_pages)
        self._accounts.append(account)

    def _pause_later(self, row: UserRow) -> bool:
        """Pause the row admitted last, of rows admitted after `row` whose members borrow pages.
        Returns whether there was one."""
        later = [
            (each, account.rows)
            for account in self._accounts
            if account.rows is not None and account.pages.counts.held > account.own_pages
            for each in account.rows.busy()
            if each.admitted_at_s > row.admitted_at_s and each.finish_reason is None
        ]
        if not later or not self._residency.may_lend:
            return False
        last, rows = max(later, key=lambda each: (each[0].admitted_at_s, each[0].number))
        rows.pause(last)
        return True

    def _call_in(self, account: _Account, by_row: bool) -> None:
        if account.unneeded_bytes(by_row):
            has_too_many = account.pages.counts.held > account.num_needed(by_row)
            if account.give_up is not None and has_too_many:
                account.give_up()
            self._limit(account, account.num_needed(by_row))

    def _lend(self, account: _Account, num_wanted: int, num_needed: int) -> None:
        """Raise the account's limit by up to `num_wanted` pages. If fewer than `num_needed` are
        free, take back pages that others do not need: from those that hold the fewest first, from
        draft models last. Does nothing if that would not free enough."""
        residency, layout = self._residency, account.pages.layout
        others = [each for each in self._accounts if each is not account]
        by_row = account.give_up is None
        could_free = sum([each.unneeded_bytes(by_row) for each in others])
        needed_bytes = num_needed * layout.page_bytes
        free_bytes = residency.free_bytes(account.name)
        if not residency.may_lend or free_bytes + could_free < needed_bytes:
            return
        others.sort(key=lambda each: (each.give_up is not None, each.pages.counts.held))
        for other in others:
            if residency.free_bytes(account.name) < needed_bytes:
                self._call_in(other, by_row)
        num_lent = min(num_wanted, residency.free_bytes(account.name) // layout.page_bytes)
        if num_lent > 0:
            limit = account.pages.limit + num_lent
            self._limit(account, min(limit, layout.num_pages))

    def _limit(self, account: _Account, num_pages: int) -> None:
        account.pages.limit_to(num_pages)
        of_member = [each.lent_bytes for each in self._accounts if each.name == account.name]
        self._residency.lend(account.name, sum(of_member))
