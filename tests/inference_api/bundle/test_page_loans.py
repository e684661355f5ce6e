"""Members that share one budget of pages: it is never exceeded, every row can go on to its end, and
what no row holds keeps nobody out. One has a draft model, whose pages go before a row waits."""

from dataclasses import dataclass
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_api.bundle.members import LoadMember, MemberState, Needs, Policy, Unload
from inference_api.bundle.page_loans import PageLoans
from inference_api.bundle.residency import Residency
from inference_api.core.input_queue import Waiting
from inference_api.core.state.row_pages import RowPages
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


@dataclass(eq=False)
class Row:
    name: str
    index: int
    prompt: tuple[int, ...]
    num_written: int
    is_drafted: bool = False


class Members(RuleBasedStateMachine):
    @initialize()
    def load_two(self) -> None:
        self.limit_bytes = 2 * WEIGHTS_BYTES + SHARED_BYTES
        self.limit_bytes += sum(OWN_PAGES[name] + DRAFT_PAGES[name] for name in "ab") * PAGE_BYTES
        self.residency = Residency(NEEDS, Policy(self.limit_bytes, 3 * MAX_ROWS, 2, 0, 100))
        self.loans = PageLoans(self.residency)
        self.pages: dict[str, tuple[RowPages, FakeMemory]] = {}
        self.drafts: dict[str, RowPages] = {}
        self.rows: list[Row] = []  # the oldest first
        self.now_s = 0.0
        for name in "ab":
            self.load(name)

    def load(self, name: str) -> None:
        """Somebody waits for the member until it is there, in turns of half a second."""
        came_s = self.now_s
        for _ in range(12):
            self.turn({name: Waiting(1, came_s, is_closed=False)})
            if name in self.pages:
                return
            for row in self.rows[:1]:
                self.end_row(row)

    def turn(self, waiting: dict[str, Waiting]) -> None:
        self.now_s += 0.5
        if self.residency.is_short(waiting):
            self.loans.call_in()
        for effect in self.residency.advance(self.now_s, waiting):
            match effect:
                case LoadMember(name):
                    self.pages[name] = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
                    pages, memory = self.pages[name]
                    self.residency.loaded(name, self.now_s)
                    self.loans.add(name, pages, memory.layout, OWN_PAGES[name])
                    if DRAFT_PAGES[name]:
                        self.drafts[name], memory = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
                        add = partial(self.loans.add, name, self.drafts[name], memory.layout)
                        add(DRAFT_PAGES[name], partial(self.give_up, name))
                case Unload(name):
                    self.loans.remove(name)
                    assert self.pages.pop(name)[0].num_held == 0
                    assert name not in self.drafts or self.drafts.pop(name).num_held == 0
                    self.residency.unloaded(name, self.now_s)

    @rule(name=st.sampled_from(NAMES))
    def need(self, name: str) -> None:
        if name not in self.pages:
            self.load(name)
            assert name in self.pages, "what no row holds keeps nobody out"

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from((1, 2, 3)),
        size=st.integers(2, MAX_TOKENS),
    )
    def start(self, name: str, kind: int, size: int) -> None:
        self.turn({name: Waiting(1, self.now_s, is_closed=False)})
        busy = {each.index for each in self.rows if each.name == name}
        if name not in self.pages or name not in self.residency.order():
            return
        pages, _ = self.pages[name]
        prompt = (kind,) * (size - 1)
        if not busy or pages.can_begin(name, prompt, 0):
            self.residency.started(name, self.now_s)
            index = next(each for each in range(MAX_ROWS) if each not in busy)
            num_cached = pages.begin(index, name, prompt)
            self.rows.append(Row(name, index, prompt, num_cached))
            if name in self.drafts:
                self.draft(self.rows[-1])

    @precondition(lambda self: self.rows)
    @rule(at=st.integers(0, 11), num_tokens=st.integers(1, MAX_TOKENS))
    def grow(self, at: int, num_tokens: int) -> None:
        """Younger rows of the member make room; the oldest can always go on."""
        row = self.rows[at % len(self.rows)]
        pages, memory = self.pages[row.name]
        end = min(row.num_written + num_tokens, MAX_TOKENS)
        while not pages.reserve(row.index, end):
            youngest = [each for each in self.rows if each.name == row.name][-1]
            others = [each for each in self.rows if each.name == row.name and each is not row]
            assert others, "its own pages suffice for one row"
            self.end_row(youngest)
            if youngest is row:
                return
        if row.is_drafted:
            self.drafts[row.name].reserve(row.index, end)
        tokens = row.prompt + (row.index,) * MAX_TOKENS
        for position in range(row.num_written, end):
            memory.write(row.index, position, (row.name, tokens[: position + 1]))
        row.num_written = end

    @precondition(lambda self: self.rows)
    @rule(at=st.integers(0, 11))
    def end(self, at: int) -> None:
        self.end_row(self.rows[at % len(self.rows)])

    def end_row(self, row: Row) -> None:
        pages, memory = self.pages[row.name]
        tokens = row.prompt + (row.index,) * MAX_TOKENS
        for position in range(row.num_written):
            assert memory.read(row.index, position) == (row.name, tokens[: position + 1])
        self.rows.remove(row)
        pages.end(row.index, row.num_written, tokens[len(row.prompt) : row.num_written])
        if row.is_drafted:
            self.drafts[row.name].end(row.index, 0)
        self.residency.ended(row.name, self.now_s)

    def draft(self, row: Row) -> None:
        self.drafts[row.name].begin(row.index, row.name, row.prompt)
        row.is_drafted = True

    def give_up(self, name: str) -> None:
        for row in [each for each in self.rows if each.name == name and each.is_drafted]:
            self.drafts[name].end(row.index, 0)
            row.is_drafted = False

    @invariant()
    def the_budget_is_kept(self) -> None:
        num_bytes = 0
        for name, (pages, _) in self.pages.items():
            needs = NEEDS[name]
            num_rows = len([each for each in self.rows if each.name == name])
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
        for row in [*self.rows]:
            self.end_row(row)
        self.loans.call_in()
        for name, (pages, _) in self.pages.items():
            assert pages.limit == OWN_PAGES[name]
            pages.forget_cached()
            assert pages.num_free == pages.limit
            assert self.residency.snapshot().members[name].state is MemberState.RESIDENT
        for name, drafts in self.drafts.items():
            assert (drafts.num_held, drafts.limit) == (0, DRAFT_PAGES[name])


TestMembers = Members.TestCase
TestMembers.settings = settings(deadline=None)


def test_long_prompts_use_what_idle_members_do_not() -> None:
    members = Members()
    members.load_two()
    pages, _ = members.pages["a"]
    for index in range(2):  # one row is its own; the other's pages are lent
        pages.begin(index, "a", (index + 5,) * (MAX_TOKENS - 1))
        assert pages.reserve(index, MAX_TOKENS)
    assert pages.limit == 2 * ROW_PAGES
    pages.end(0, MAX_TOKENS - 1)
    other, _ = members.pages["b"]
    for index in range(3):
        other.begin(index, "b", (index + 5,) * (MAX_TOKENS - 1))
        assert other.reserve(index, MAX_TOKENS)
    assert other.counts == (3 * ROW_PAGES, 0, 0)
    assert pages.num_held == ROW_PAGES
    assert not pages.num_cached, "the end of another member's row needed what was cached beyond"


def test_drafts_lose_borrowed_pages_to_a_row_and_not_to_other_drafts() -> None:
    members = Members()
    members.load_two()
    drafts, (pages, _) = members.drafts["b"], members.pages["a"]
    prompt = (5,) * (MAX_TOKENS - 1)
    for index in range(2):  # its own two pages, and all that are shared
        members.rows.append(Row("b", index, prompt, 0))
        members.draft(members.rows[-1])
        assert drafts.reserve(index, MAX_TOKENS)
    assert drafts.limit == DRAFT_PAGES["b"] + SHARED_BYTES // PAGE_BYTES == 2 * ROW_PAGES
    pages.begin(0, "a", prompt)
    assert pages.reserve(0, MAX_TOKENS)
    other, memory = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS)
    members.loans.add("a", other, memory.layout, 0, lambda: None)
    other.begin(0, "a", prompt)
    assert not other.reserve(0, MAX_TOKENS)
    assert drafts.num_held == 2 * ROW_PAGES
    pages.begin(1, "a", (6,) * (MAX_TOKENS - 1))
    assert pages.reserve(1, MAX_TOKENS)
    assert (drafts.num_held, drafts.limit) == (0, DRAFT_PAGES["b"])


def test_a_row_that_ends_leaves_a_copy_of_its_recurrent_state_in_borrowed_pages() -> None:
    members = Members()
    members.load_two()
    pages, memory = make_pages(MAX_ROWS * ROW_PAGES, MAX_ROWS, state_pages=2)
    members.loans.remove("a")
    members.loans.add("a", pages, memory.layout, own_pages=ROW_PAGES)
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
