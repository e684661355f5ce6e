"""The decode loop, driven step by step on this thread, over the echo runner."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api._mock_inference_api_server import END_TOKEN, ByteTokenizer, EchoRunner
from inference_api.core import decode_backend
from inference_api.core.decode_backend import YIELD_EVENTS, DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.core.status import Hooks, Phase
from inference_api.errors import BackendFailed, Draining, NotReady, QueueFull
from inference_api.loading.config import PAGE_TOKENS
from inference_api.model_loading import loaded_alone
from inference_api.request import FinishReason, GenerationParams, GenerationRequest, OutputQueue
from inference_api.settings import Settings

NAME = "hearth-tiny"
WAIT_S = 0.01


class Loop:
    """A backend whose thread is the test, on a clock that the test moves."""

    def __init__(
        self,
        rows: int = 2,
        context: int = 64,
        chunk: int = 4,
        models: tuple[str, ...] = (NAME,),
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.now_s = 0.0
        self.input_queue = InputQueue(100, dict.fromkeys(models, rows), self.now)
        self.output_queues = OutputQueues()
        self._requests: dict[OutputQueue, GenerationRequest] = {}
        self.backend = DecodeBackend(
            Settings.model_validate(
                {
                    "user_rows": rows,
                    "prefill_chunk_tokens": chunk,
                    "drain_timeout_s": 10,
                    **settings,
                }
            ),
            self.input_queue,
            self.output_queues,
            clock=self.now,
        )
        self.backend.take(
            loaded_alone(name, EchoRunner(rows, context), ByteTokenizer(), self.backend.settings)
            for name in models
        )
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()

    def now(self) -> float:
        return self.now_s

    def submit(self, text: str, max_tokens: int = 100, model: str = NAME) -> OutputQueue:
        queue = self.output_queues.open(model)
        tokens = tuple(text.encode())
        stop = frozenset({END_TOKEN})
        request = GenerationRequest(queue, model, tokens, GenerationParams(max_tokens), stop)
        self._requests[queue] = request
        self.input_queue.put(request)
        return queue

    def cancel(self, queue: OutputQueue) -> None:
        self.backend.cancel(self._requests[queue])

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.backend.step()


def test_process_hears_that_models_are_loaded_before_a_request_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases: list[Phase] = []
    queues = (InputQueue(1, {NAME: 1}), OutputQueues())
    backend = DecodeBackend(Settings(user_rows=1), *queues)
    model = loaded_alone(NAME, EchoRunner(1, 8), ByteTokenizer(), backend.settings)
    monkeypatch.setattr(backend, "load_model_and_tokenizer", lambda: backend.take([model]))
    backend.hooks = Hooks(on_loaded=lambda: phases.append(backend.phase))
    backend.start()
    backend.stop()
    assert phases == [Phase.LOADING]


def drained(queue: OutputQueue) -> tuple[str, FinishReason | None]:
    ids: list[int] = []
    reason = None
    while (event := queue.get(WAIT_S)) is not None:
        ids.extend(event.token_ids)
        reason = event.finish_reason
    return bytes(ids).decode(), reason


def test_prompt_of_one_token_needs_no_prefill() -> None:
    loop = Loop()
    queue = loop.submit("a")
    loop.step(2)
    assert drained(queue) == ("a", FinishReason.STOP)


def test_long_prompt_is_prefilled_in_chunks_beside_a_running_row() -> None:
    loop = Loop(chunk=4)
    running = loop.submit("abcdefgh")
    loop.step(2)
    assert drained(running)[0] == "a"
    loop.submit("0123456789")  # nine tokens to prefill: three steps
    for expected in "bcd":
        loop.step()
        assert drained(running)[0] == expected
    assert loop.backend.snapshot.totals.prefilled_tokens == 7 + 9


def test_short_prompts_share_the_prefill_budget_of_a_step() -> None:
    loop = Loop(rows=4, chunk=4)
    queues = [loop.submit("abc") for _ in range(3)]
    loop.step()
    assert [drained(queue)[0] for queue in queues] == ["a", "a", ""]


def test_prompts_leave_running_rows_their_pace() -> None:
    """With all 32 rows decoding a step has 32 tokens; 1.4 times that leaves room for 13."""
    loop = Loop(rows=32, context=200, chunk=100)
    for _ in range(31):
        loop.submit("x" * 3)
    loop.step(2)
    loop.submit("y" * 99)
    before = loop.backend.snapshot.totals.prefilled_tokens
    loop.step()
    assert loop.backend.snapshot.totals.prefilled_tokens - before == round(1.4 * 32) - 31


@pytest.mark.parametrize(("together", "yields"), [(1, 1), (YIELD_EVENTS, 1), (YIELD_EVENTS + 1, 0)])
def test_who_waits_for_a_first_token_of_few_gets_the_processor(
    together: int, yields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(rows=8, chunk=64)
    busy_rows: list[int] = []  # as others see them meanwhile
    monkeypatch.setattr(
        decode_backend,
        "yield_processor",
        lambda: busy_rows.append(loop.backend.snapshot.busy_rows),
    )
    queues = [loop.submit("abc") for _ in range(together)]
    loop.step(3)
    assert {drained(queue)[0] for queue in queues} == {"abc"}
    assert busy_rows == [together] * yields


def test_second_turn_prefills_only_what_is_new() -> None:
    loop = Loop(rows=2, context=200, chunk=100)
    first = loop.submit("a question of some length", max_tokens=4)
    loop.step(5)
    answer, _ = drained(first)
    turn = loop.submit("a question of some length" + answer + " and the next", max_tokens=4)
    loop.step(5)
    event = turn.get(WAIT_S)
    assert event is not None
    assert event.reused_tokens == len("a question of some length") + 3
    totals = loop.backend.snapshot.totals
    assert (totals.reused_tokens, totals.prefilled_tokens) == (28, 24 + 13)


BEGINNING = "the same long beginning of both, "  # a page, and one token more


def test_whole_pages_of_a_common_beginning_are_shared_with_a_row_that_runs() -> None:
    loop = Loop(rows=4, context=200, chunk=100)
    loop.submit(BEGINNING + "one", max_tokens=50)
    loop.step()
    loop.submit(BEGINNING + "two", max_tokens=50)
    loop.step()
    assert loop.backend.snapshot.totals.reused_tokens == PAGE_TOKENS


def test_common_beginning_is_reused_to_the_token_once_its_row_has_ended() -> None:
    loop = Loop(rows=4, context=200, chunk=100)
    loop.submit(BEGINNING + "and as much again, of both, one", max_tokens=1)
    loop.step(2)
    loop.submit(BEGINNING + "and as much again, of both, two", max_tokens=1)
    loop.step()
    totals = loop.backend.snapshot.totals
    assert totals.reused_tokens == len(BEGINNING + "and as much again, of both, ")


def test_max_tokens_and_context_end_a_generation_with_length() -> None:
    loop = Loop(context=12)
    short = loop.submit("abcdef", max_tokens=2)
    cut = loop.submit("abcdefgh", max_tokens=100)
    loop.step(10)
    assert drained(short) == ("ab", FinishReason.LENGTH)
    assert drained(cut) == ("abcd", FinishReason.LENGTH)


def test_freed_row_is_refilled_at_the_next_step() -> None:
    loop = Loop(rows=1)
    loop.submit("a", max_tokens=1)
    second = loop.submit("b", max_tokens=1)
    loop.step(2)
    assert drained(second) == ("b", FinishReason.LENGTH)


def test_cancelled_request_frees_its_row_within_one_step() -> None:
    loop = Loop(rows=1)
    running, waiting = loop.submit("x" * 50), loop.submit("y")
    loop.step()
    loop.cancel(running)
    loop.step()
    assert drained(waiting)[0] == "y"


def test_cancelled_request_leaves_the_queue_at_once() -> None:
    loop = Loop(rows=1)
    waiting = loop.submit("y")
    loop.cancel(waiting)
    assert len(loop.input_queue) == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), max_size=25))
def test_no_row_leaks_whatever_the_order_of_arrivals_and_cancels(
    plan: list[tuple[int, int, bool]],
) -> None:
    loop, queues = Loop(rows=3), []
    for length, steps, is_cancelled in plan:
        queues.append(loop.submit("x" * length))
        loop.step(steps)
        if is_cancelled:
            loop.cancel(queues[len(queues) // 2])
    loop.step(400)
    assert loop.backend.users == [None] * 3
    assert len(loop.input_queue) == 0
    for queue in queues:
        loop.output_queues.close(queue)
    assert len(loop.output_queues) == 0
    for _ in range(100 + 3):  # the queue's places and the rows
        loop.submit("x")
    with pytest.raises(QueueFull):
        loop.submit("x")


def test_models_step_side_by_side_and_a_full_one_blocks_no_other() -> None:
    loop = Loop(rows=1, models=("a", "b"))
    running, waiting = loop.submit("xx", model="a"), loop.submit("y", model="a")
    other = loop.submit("z", model="b")
    loop.step(2)
    assert [drained(queue) for queue in (running, waiting, other)] == [
        ("xx", None),
        ("", None),
        ("z", FinishReason.STOP),
    ]
    assert {name: each.busy_rows for name, each in loop.backend.snapshot.models.items()} == {
        "a": 1,
        "b": 0,
    }


def test_prefixes_are_reused_by_the_model_that_holds_them_only() -> None:
    loop = Loop(rows=2, context=200, chunk=100, models=("a", "b"))
    reused = []
    for model in ("a", "b", "a"):
        queue = loop.submit("a question of some length", max_tokens=1, model=model)
        loop.step(2)
        event = queue.get(WAIT_S)
        assert event is not None
        reused.append(event.reused_tokens)
    assert reused == [0, 0, len("a question of some length") - 1]
    totals = [each.totals for each in loop.backend.snapshot.models.values()]
    assert [each.reused_tokens for each in totals] == [reused[2], 0]
    assert loop.backend.snapshot.totals.generated_tokens == 3


def test_cancelled_and_failed_requests_of_all_models_leave_their_rows() -> None:
    loop = Loop(rows=1, models=("a", "b"))
    cancelled = loop.submit("x" * 50, model="b")
    running = loop.submit("y" * 50, model="a")
    loop.step()
    loop.cancel(cancelled)
    loop.step()
    assert [user and user.request.output for user in loop.backend.users] == [running, None]
    loop.backend._fail(RuntimeError("of this test"))
    assert loop.backend.users == [None, None]
    assert drained(running)[1] is FinishReason.ERROR


def test_draining_finishes_what_was_admitted_then_says_so() -> None:
    loop, told = Loop(rows=1), list[str]()
    running, waiting = loop.submit("ab"), loop.submit("c")
    loop.step()
    loop.backend.drain(on_drained=lambda: told.append("drained"))
    with pytest.raises(Draining):
        loop.backend.check_admission()
    with pytest.raises(Draining):
        loop.submit("late")
    for _ in range(6):
        loop.step()
        loop.backend._go_on_draining(until_s=10.0)
    assert drained(running) == ("ab", FinishReason.STOP)
    assert drained(waiting) == ("c", FinishReason.STOP)
    assert told == ["drained"]


def test_drain_timeout_ends_the_rest_with_an_error() -> None:
    loop = Loop(rows=1)
    running, waiting = loop.submit("x" * 50), loop.submit("y")
    loop.step()
    loop.backend.drain()
    loop.now_s = 11.0
    loop.backend._go_on_draining(until_s=10.0)
    for queue in (running, waiting):
        assert drained(queue)[1] is FinishReason.ERROR
    assert loop.backend.users == [None]


def test_a_failure_ends_the_drain_that_runs() -> None:
    loop, told = Loop(rows=1), list[str]()
    running = loop.submit("x" * 50)
    loop.step()
    loop.backend.drain(on_drained=lambda: told.append("drained"))
    loop.backend._fail(RuntimeError("of this test"))
    assert drained(running)[1] is FinishReason.ERROR
    assert told == ["drained"]


def test_admission_says_why_not() -> None:
    loop = Loop()
    loop.backend.phase = Phase.LOADING
    with pytest.raises(NotReady):
        loop.backend.check_admission()
    loop.backend.phase = Phase.FAILED
    with pytest.raises(BackendFailed):
        loop.backend.check_admission()


def test_health_notices_a_loop_that_finishes_no_step() -> None:
    loop = Loop()
    assert loop.backend.unhealthy_reason() is None
    loop.now_s = 5 * loop.backend.settings.keepalive_period_s + 1
    assert "no step after 601 s" in str(loop.backend.unhealthy_reason())
    loop.step()
    assert loop.backend.unhealthy_reason() is None


def test_health_notices_a_load_that_does_not_end() -> None:
    loop = Loop()
    loop.backend.phase = Phase.LOADING
    loop.now_s = loop.backend.settings.load_timeout_s
    assert loop.backend.unhealthy_reason() is None
    loop.now_s += 1
    assert loop.backend.unhealthy_reason() == (
        "decode thread is still loading after 3601 s, limit 3600 s"
    )
    loop.backend._become_ready()
    assert loop.backend.unhealthy_reason() is None


@pytest.mark.parametrize(
    "part", ["load_model_and_tokenizer", "_post_init_compile", "_become_ready", "on_loaded"]
)
def test_whatever_fails_before_the_first_request_ends_the_start(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("of this test")

    loop, told = Loop(), list[str]()
    loop.backend.phase = Phase.LOADING
    monkeypatch.setattr(loop.backend, "load_model_and_tokenizer", lambda: None)
    if part != "on_loaded":
        monkeypatch.setattr(loop.backend, part, fail)
    loop.backend.hooks = Hooks(
        on_loaded=fail if part == "on_loaded" else lambda: None,
        on_load_failed=lambda: told.append("not loaded"),
        on_failed=lambda: told.append("failed later"),
    )
    loop.backend._run()
    assert told == ["not loaded"]
    assert "RuntimeError: of this test" in str(loop.backend.unhealthy_reason())
    with pytest.raises(BackendFailed):
        loop.backend.check_admission()


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.FAILED])
def test_draining_a_backend_that_serves_nobody_is_over_at_once(phase: Phase) -> None:
    loop, told = Loop(), list[str]()
    loop.backend.phase = phase
    loop.backend.drain(on_drained=lambda: told.append("drained"))
    assert told == ["drained"]
