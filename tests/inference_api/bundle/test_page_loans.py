"""Members that share one budget of pages: it is never exceeded, every row can go on to its end, the
rows admitted last pause first, and what no row holds keeps nobody out. One has a draft model, whose
pages go before a row waits."""

from functools import partial
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_api.bundle.members import LoadMember, MemberState, Needs, Policy, Unload
from inference_api.bundle.page_loans import PageLoans
from inference_api.bundle.residency import Residency
from inference_api.core.input_queue import Waiting
from inference_api.core.rows import RowTable, UserRow
from inference_api.core.state.row_pages import RowPages
from inference_api.request import GenerationRequest, OutputQueue, SessionId
from tests.inference_api.core.state.memory import PAGE_BYTES, PAGE_TOKENS, FakeMemory, make_pages

MAX_ROWS, ROW_PAGES = 4, 4
MAX_TOKENS = ROW_PAGES * PAGE_TOKENS
WEIGHTS_BYTES = 10 * PAGE_BYTES
NAMES = "abc"
OWN_PAGES = {"a": ROW_PAGES, "b": ROW_PAGES + 2, "c": ROW_PAGES}  # less than b's two long rows
DRAFT_PAGES = {"a": 0, "b": 2, "c": 0}
NEEDS = {
    name: Needs(
        weights_bytes=WEIGHTS_BYTES,
        other_bytes=0,
        guaranteed_bytes=(OWN_PAGES[name] + DRAFT_PAGES[name]) * PAGE_BYTES + row_bytes,
        row_bytes=row_bytes,
        rows_min=1 + (name == "b"),
        rows_max=MAX_ROWS,
    )
    for name, row_bytes in (("a", 0), ("b", 0), ("c", PAGE_BYTES // 2))
}
SHARED_BYTES = 6 * PAGE_BYTES  # is left beside two members


class Members(RuleBasedStateMachine):
    @initialize()
    def load_two(self) -> None:
        self.limit_bytes = 2 * WEIGHTS_BYTES + SHARED_BYTES
        self.limit_bytes += sum(OWN_PAGES[name] + DRAFT_PAGES[name] for name in "ab") * PAGE_BYTES
        self.residency = Residency(NEEDS, Policy(self.limit_bytes, 3 * MAX_ROWS, 2, 0, 100))
        self.loans = PageLoans(self.residency)
        self.tables: dict[str, RowTable] = {}
        self.memories: dict[str, FakeMemory] = {}
        self.drafts: dict[str, RowPages] = {}
        self.drafted: dict[GenerationRequest, UserRow] = {}
        self.now_s = 0.0
        for name in "ab":
            self.load(name)

    def load(self, name: str) -> None:
        """Somebody waits for the member until it is there, in turns of half a second."""
        arrived_s = self.now_s
        for _ in range(12):
            self.turn({name: Waiting(1, arrived_s, is_closed=False)})
            if name in self.tables:
                return
            for row in self.rows()[:1]:
                self.end_row(row)

    def turn(self, waiting: dict[str, Waiting]) -> None:
        self.now_s += 0.5
        if self.residency.is_short(waiting):
            self.loans.call_in()
        for effect in self.residency.advance(self.now_s, waiting):
            match effect:
                case LoadMember(name):
                    pages, memory = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
                    self.tables[name], self.memories[name] = RowTable(MAX_ROWS, pages), memory
                    self.residency.loaded(name, self.now_s)
                    self.loans.add(name, self.tables[name], OWN_PAGES[name])
                    if DRAFT_PAGES[name]:
                        self.drafts[name], _ = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
                        add = partial(self.loans.add_draft, name, self.drafts[name])
                        add(DRAFT_PAGES[name], partial(self.give_up, name))
                case Unload(name):
                    self.loans.remove(name)
                    assert self.tables.pop(name).pages.counts.held == 0
                    assert name not in self.drafts or self.drafts.pop(name).counts.held == 0
                    self.residency.unloaded(name, self.now_s)
        for table in self.tables.values():
            table.resume()

    @rule(name=st.sampled_from(NAMES))
    def need(self, name: str) -> None:
        if name not in self.tables:
            self.load(name)
            assert name in self.tables, "what no row holds keeps nobody out"

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from((1, 2, 3)),
        size=st.sampled_from((2, PAGE_TOKENS + 1, MAX_TOKENS)),
    )
    def start(self, name: str, kind: int, size: int) -> None:
        self.turn({name: Waiting(1, self.now_s, is_closed=False)})
        if name in self.tables and name in self.residency.order():
            prompt = (kind,) * (size - 1)
            request = GenerationRequest(OutputQueue(SessionId(""), name), name, prompt)
            with patch("inference_api.core.rows.SPARE_PAGES", 0):
                if not self.tables[name].may_admit(request):
                    return
            self.residency.started(name, self.now_s)
            row = self.tables[name].assign(request, MAX_TOKENS + 1, self.now_s)
            if name in self.drafts:
                self.draft(row)

    @precondition(lambda self: self.rows())
    @rule(at=st.integers(0, 11), num_tokens=st.sampled_from((1, PAGE_TOKENS, MAX_TOKENS)))
    def grow(self, at: int, num_tokens: int) -> None:
        """Rows of all members that were admitted later make room; the oldest can always go on."""
        rows = self.rows()
        row = rows[at % len(rows)]
        table = self.tables[row.request.model]
        if row in table.paused:
            return
        end, paused = min(row.num_cached + num_tokens, MAX_TOKENS), self.paused()
        has_room = table.make_room(row, end - row.num_cached)
        lasting = [each for each in rows if each.request not in self.paused()]
        for request in self.paused() - paused:
            [left] = [each for each in rows if each.request is request]
            assert left is not rows[0]
            assert left is row or left.admitted_at_s > row.admitted_at_s
            later = [each for each in lasting if each.admitted_at_s > left.admitted_at_s]
            assert not (self.residency.may_lend and any(map(self.borrows, later)))
        if has_room:
            self.write(row, end)

    @rule(names=st.lists(st.sampled_from("ab"), max_size=8))
    def start_several(self, names: list[str]) -> None:
        for name in names:
            self.start(name, 1, 2)
        for at in range(len(self.rows())):
            self.grow(at, MAX_TOKENS)

    def write(self, row: UserRow, end: int) -> None:
        """The row is computed up to `end`, and says what it may have to."""
        name, prompt = row.request.model, row.request.prompt_tokens
        if row.request in self.drafted:
            self.drafts[name].reserve(row.index, end)
        row.generated += [row.number + 10] * (end - len(prompt) - len(row.generated))
        tokens = (*prompt, *row.generated)
        for position in range(row.num_cached, end):
            self.memories[name].write(row.index, position, ("", tokens[: position + 1]))
        row.num_cached = end

    @precondition(lambda self: self.rows())
    @rule(at=st.integers(0, 11))
    def end(self, at: int) -> None:
        rows = self.rows()
        self.end_row(rows[at % len(rows)])

    def end_row(self, row: UserRow) -> None:
        name, tokens = row.request.model, (*row.request.prompt_tokens, *row.generated)
        for position in range(row.num_cached):
            written = self.memories[name].read(row.index, position)
            assert written == ("", tokens[: position + 1])
        self.tables[name].free(row)
        self.residency.ended(name, self.now_s)

    def draft(self, row: UserRow) -> None:
        name = row.request.model
        self.drafts[name].begin(row.index, "", row.request.prompt_tokens)
        self.drafted[row.request] = row
        row.on_leave = self.leave

    def leave(self, row: UserRow) -> None:
        if self.drafted.pop(row.request, None) is not None:
            self.drafts[row.request.model].end(row.index, 0)

    def give_up(self, name: str) -> None:
        for row in [each for each in self.drafted.values() if each.request.model == name]:
            self.leave(row)

    def rows(self) -> list[UserRow]:
        """Returns the rows of all members, paused ones included, the oldest first."""
        tables = self.tables.values()
        rows = [row for table in tables for row in (*table.busy(), *table.paused)]
        return sorted(rows, key=lambda row: row.admitted_at_s)

    def paused(self) -> set[GenerationRequest]:
        return {row.request for table in self.tables.values() for row in table.paused}

    def borrows(self, row: UserRow) -> bool:
        name = row.request.model
        return self.tables[name].pages.counts.held > OWN_PAGES[name]

    @invariant()
    def the_budget_is_kept(self) -> None:
        num_bytes = 0
        for name, table in self.tables.items():
            needs, pages = NEEDS[name], table.pages
            num_rows = len(table) + len(table.paused)
            assert pages._pool.num_touched <= pages.limit
            assert pages.limit >= OWN_PAGES[name]
            num_bytes += needs.weights_bytes + pages.limit * PAGE_BYTES
            num_bytes += max(needs.rows_min, num_rows) * needs.row_bytes
        for name, drafts in self.drafts.items():
            assert drafts._pool.num_touched <= drafts.limit
            assert drafts.limit >= DRAFT_PAGES[name]
            num_bytes += drafts.limit * PAGE_BYTES
        assert num_bytes == self.residency.snapshot().used_bytes <= self.limit_bytes

    def teardown(self) -> None:
        while rows := self.rows():
            row, table = rows[0], self.tables[rows[0].request.model]
            assert row in table.busy(), "the oldest is not paused"
            assert table.make_room(row, MAX_TOKENS - row.num_cached)
            self.write(row, MAX_TOKENS)
            self.end_row(row)
            self.turn({})
        self.loans.call_in()
        for name, table in self.tables.items():
            pages = table.pages
            assert pages.limit == OWN_PAGES[name]
            pages.forget_cached()
            assert pages.counts.free == pages.limit
            assert self.residency.snapshot().members[name].state is MemberState.RESIDENT
        for name, drafts in self.drafts.items():
            assert (drafts.counts.held, drafts.limit) == (0, DRAFT_PAGES[name])


TestMembers = Members.TestCase
TestMembers.settings = settings(deadline=None)


def test_long_prompts_use_what_idle_members_do_not() -> None:
    members = Members()
    members.load_two()
    pages = members.tables["a"].pages
    for index in range(2):  # one row is its own; the other's pages are lent
        pages.begin(index, "a", (index + 5,) * (MAX_TOKENS - 1))
        assert pages.reserve(index, MAX_TOKENS)
    assert pages.limit == 2 * ROW_PAGES
    pages.end(0, MAX_TOKENS - 1)
    other = members.tables["b"].pages
    for index in range(3):
        other.begin(index, "b", (index + 5,) * (MAX_TOKENS - 1))
        assert other.reserve(index, MAX_TOKENS)
    assert other.counts == (3 * ROW_PAGES, 0, 0)
    assert pages.counts.held == ROW_PAGES
    assert not pages.counts.cached, "the end of another member's row needed what was cached beyond"


def test_what_pauses_is_the_row_admitted_last_of_all_members_that_borrow() -> None:
    members = Members()
    members.load_two()
    for name in "aabbb":
        members.start(name, 1, 2)
    for at in (4, 3, 2, 0):  # with all that is shared, the rows of b
        members.grow(at, MAX_TOKENS)
    assert not members.paused()
    first, last = members.rows()[1], members.rows()[-1]
    members.grow(1, MAX_TOKENS)
    assert first.num_cached == MAX_TOKENS
    assert members.paused() == {last.request}
    members.teardown()


def test_drafts_lose_borrowed_pages_to_a_row_and_not_to_other_drafts() -> None:
    members = Members()
    members.load_two()
    drafts, pages = members.drafts["b"], members.tables["a"].pages
    prompt = (5,) * (MAX_TOKENS - 1)
    for index in range(2):  # its own two pages, and all that are shared
        request = GenerationRequest(OutputQueue(SessionId(""), "b"), "b", prompt)
        members.draft(UserRow(index, request, MAX_TOKENS, 0.0))
        assert drafts.reserve(index, MAX_TOKENS)
    assert drafts.limit == DRAFT_PAGES["b"] + SHARED_BYTES // PAGE_BYTES == 2 * ROW_PAGES
    pages.begin(0, "a", prompt)
    assert pages.reserve(0, MAX_TOKENS)
    other, _ = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
    members.loans.add_draft("a", other, 0, lambda: None)
    other.begin(0, "a", prompt)
    assert not other.reserve(0, MAX_TOKENS)
    assert drafts.counts.held == 2 * ROW_PAGES
    pages.begin(1, "a", (6,) * (MAX_TOKENS - 1))
    assert pages.reserve(1, MAX_TOKENS)
    assert (drafts.counts.held, drafts.limit) == (0, DRAFT_PAGES["b"])


def test_a_row_that_ends_leaves_a_copy_of_its_recurrent_state_in_borrowed_pages() -> None:
    members = Members()
    members.load_two()
    pages, memory = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS, state_pages=2)
    members.loans.remove("a")
    members.loans.add("a", RowTable(MAX_ROWS, pages), ROW_PAGES)
    pages.begin(0, "a", (4,) * (MAX_TOKENS - 1))
    assert pages.reserve(0, MAX_TOKENS)
    pages.begin(1, "a", (5,) * 9)
    assert pages.reserve(1, 8)
    memory.write_state(1, ("a", (5,) * 8))
    pages.end(1, 8)
    states = memory.layout.states_of(1)
    assert memory.given_back == [*states]
    assert pages.begin(2, "a", (5,) * 9) == 8
    assert memory.read_state(2) == {("a", (5,) * 8)}
