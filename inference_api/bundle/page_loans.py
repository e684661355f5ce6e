"""One budget for the pages of all resident members.

Each member has the pages of its guaranteed rows. Its rows and cached pages may use others while the
memory is free. Cached ones go as soon as a row or a member to be loaded needs it. Decode thread
only.
"""

from dataclasses import dataclass
from functools import partial

from inference_api.bundle.residency import Residency
from inference_api.core.state.row_pages import RowPages
from inference_api.runner import PageLayout


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    pages: RowPages
    layout: PageLayout
    own_pages: int

    @property
    def num_needed(self) -> int:
        """Pages that it keeps when all are called in."""
        return max(self.own_pages, self.pages.num_held)

    @property
    def lent_bytes(self) -> int:
        return (self.pages.limit - self.own_pages) * self.layout.page_bytes

    @property
    def unneeded_bytes(self) -> int:
        return (self.pages.limit - self.num_needed) * self.layout.page_bytes


class PageLoans:
    """Limits the pages of members, and counts in `residency` what they borrow."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._accounts: list[_Account] = []

    def add(self, name: str, pages: RowPages, layout: PageLayout, own_pages: int) -> None:
        """A member is in memory; called once more for its draft model, if any. Its own pages
        suffice for its longest row."""
        account = _Account(name, pages, layout, own_pages)
        pages.borrow = partial(self._lend, account)
        pages.limit_to(own_pages)
        self._accounts.append(account)

    def remove(self, name: str) -> None:
        """A member without rows leaves memory."""
        for account in [each for each in self._accounts if each.name == name]:
            account.pages.borrow = None
            self._limit(account, account.own_pages)
            self._accounts.remove(account)

    def call_in(self) -> None:
        """Take back what no row holds, from all members."""
        for account in self._accounts:
            self._call_in(account)

    def _call_in(self, account: _Account) -> None:
        if account.unneeded_bytes:
            self._limit(account, account.num_needed)

    def _lend(self, account: _Account, num_wanted: int, num_needed: int) -> None:
        """Raise the account's limit by up to `num_wanted` pages. If fewer than `num_needed` are
        free, take back what others do not need, those with the fewest pages in use first; without
        as many, nothing changes."""
        residency, page_bytes = self._residency, account.layout.page_bytes
        others = [each for each in self._accounts if each is not account]
        could_free = sum([each.unneeded_bytes for each in others])
        needed_bytes, free_bytes = num_needed * page_bytes, residency.free_bytes(account.name)
        if not residency.may_lend or free_bytes + could_free < needed_bytes:
            return
        for other in sorted(others, key=lambda each: each.pages.num_held):
            if residency.free_bytes(account.name) < needed_bytes:
                self._call_in(other)
        num_lent = min(num_wanted, residency.free_bytes(account.name) // page_bytes)
        if num_lent > 0:
            limit = account.pages.limit + num_lent
            self._limit(account, min(limit, account.layout.num_pages))

    def _limit(self, account: _Account, num_pages: int) -> None:
        account.pages.limit_to(num_pages)
        of_member = [each.lent_bytes for each in self._accounts if each.name == account.name]
        self._residency.lend(account.name, sum(of_member))
