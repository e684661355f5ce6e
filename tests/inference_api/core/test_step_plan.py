"""How many prompt tokens join a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api._mock_inference_api_server import EchoRunner
from inference_api.core.plan import MIN_CHUNK_TOKENS, StepPlanner
from inference_api.core.step_costs import Contents
from inference_api.loading.config import PAGE_TOKENS
from inference_api.runner import MAX_STEP_TOKENS, PageLayout
from inference_api.settings import Settings
from tests.inference_api.core.row_tables import make_rows
from tests.inference_api.core.test_decode_backend import NAME, Loop

CHUNK = 64


def planner_of(prompt_token_s: float | None, **settings: object) -> StepPlanner:
    """A step of n rows takes 5 + n ms."""
    loop = Loop(rows=16, chunk=CHUNK, settings=settings)
    costs = loop.backend.served[NAME].costs
    costs.warmed_up({rows: (5 + rows) / 1000 for rows in range(1, 17)})
    if prompt_token_s is not None:
        costs.learn_turn(Contents(0, 0, 10), costs.step_s(1) + 10 * prompt_token_s, 0.0)
    return loop.backend.models[NAME].planner


@pytest.mark.parametrize(
    ("rows", "room_tokens"), [(0, CHUNK), (1, 48), (4, 42), (14, 22), (16, 18)]
)
def test_budget_in_time_is_what_the_rows_leave_of_it(rows: int, room_tokens: int) -> None:
    planner = planner_of(0.0005, itl_budget_ms=30.1)
    assert planner.room_tokens(rows) == room_tokens


def test_prompts_get_on_whatever_the_budget_and_a_chunk_is_all_they_get() -> None:
    assert planner_of(0.0005, itl_budget_ms=1).room_tokens(16) == MIN_CHUNK_TOKENS
    assert planner_of(0.0005, itl_budget_ms=10_000).room_tokens(16) == CHUNK
    assert planner_of(0.0, itl_budget_ms=30).room_tokens(16) == CHUNK


def test_rows_that_windows_pass_take_steps_that_pages_were_counted_for() -> None:
    class Windowed(EchoRunner):
        @property
        def layout(self) -> PageLayout:
            return super().layout._replace(windows=(64,))

    settings, rows = Settings(prefill_chunk_tokens=2048), make_rows()
    for runner, chunk_tokens in ((EchoRunner(1, 128), 2048), (Windowed(1, 128), MAX_STEP_TOKENS)):
        assert StepPlanner(rows, runner, settings).room_tokens(0) == chunk_tokens


def test_until_a_prompt_was_timed_and_without_that_budget_tokens_count_alike() -> None:
    expected = round(1.5 * 16) - 3
    assert planner_of(None, itl_budget=1.5, itl_budget_ms=30).room_tokens(3) == expected
    assert planner_of(0.0005, itl_budget=1.5).room_tokens(3) == expected


def test_prompt_beside_running_rows_is_cut_to_the_budget() -> None:
    loop = Loop(rows=16, context=200, chunk=CHUNK, settings={"itl_budget_ms": 30.1})
    costs = loop.backend.served[NAME].costs
    costs.warmed_up({rows: (5 + rows) / 1000 for rows in range(1, 17)})
    costs.learn_turn(Contents(0, 0, 10), costs.step_s(1) + 10 * 0.0005, 0.0)
    loop.submit("x" * 20)
    loop.step()
    before = loop.backend.snapshot.totals.prefilled_tokens
    loop.submit("y" * 120)
    loop.step()
    assert loop.backend.snapshot.totals.prefilled_tokens - before == 48


def taken(loop: Loop) -> dict[int, int]:
    """How many prompt tokens each row takes in the next step, by the length of its prompt."""
    step = loop.backend.models[NAME].planner.plan()
    sizes: dict[int, int] = {}
    for row, chunk in step.prompts:
        length = len(row.request.prompt_tokens)
        sizes[length] = sizes.get(length, 0) + len(chunk.token_ids)
    return sizes


def waiting(*lengths: int) -> Loop:
    loop = Loop(rows=8, context=2000, chunk=CHUNK)
    for length in lengths:
        loop.submit("z" * length)
    loop.backend._pick_prompts()
    return loop


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    assert taken(waiting(1000, 21)) == {1000: CHUNK - 20, 21: 20}


def test_who_came_first_has_half_of_the_room_and_the_shortest_the_rest() -> None:
    assert taken(waiting(1000, 700, 26, 18)) == {1000: 32, 18: 17, 26: 15}
    assert taken(waiting(1000)) == {1000: CHUNK}


def test_prompts_that_begin_alike_wait_for_what_the_first_is_about_to_prefill() -> None:
    assert taken(waiting(1000, 700)) == {1000: CHUNK}
    other = waiting(1000)
    other.submit("y" * 700)
    other.backend._pick_prompts()
    assert taken(other) == {1000: CHUNK // 2, 700: CHUNK // 2}
    plain = Loop(rows=2, context=2000, chunk=CHUNK, settings={"prefix_reuse": False})
    plain.submit("z" * 1000)
    plain.submit("z" * 700)
    plain.backend._pick_prompts()
    assert taken(plain) == {1000: CHUNK // 2, 700: CHUNK // 2}


@given(
    st.lists(st.integers(0, 300), min_size=2, max_size=6),
    st.integers(0, 900),
    st.integers(0, 20),
)
def test_what_prompts_have_in_common_is_prefilled_once(
    ends: list[int], common: int, gap: int
) -> None:
    """Agents that begin at once, or a few steps after each other, with one system prompt."""
    loop, prompts = Loop(rows=6, context=2000, chunk=CHUNK), []
    for number, length in enumerate(ends):
        prompts.append("s" * common + chr(ord("a") + number) * length + "!")
        loop.submit(prompts[-1], max_tokens=1)
        loop.step(gap)
    loop.step(100)
    assert not loop.backend.models[NAME].rows.busy()
    prefilled = loop.backend.snapshot.totals.prefilled_tokens
    assert common + sum(ends) - 1 <= prefilled <= common + sum(ends) + PAGE_TOKENS * len(ends)


def test_prompts_that_lack_as_much_or_more_wait_for_their_turn() -> None:
    assert taken(waiting(700, 700, 701)) == {700: CHUNK}
    assert taken(waiting(18, 700, 26)) == {18: 17, 700: CHUNK - 17}
