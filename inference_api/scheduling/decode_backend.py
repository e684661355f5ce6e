"""The decode thread: a loop over the user rows, and the only caller of the model.

Prompts come in through the input queue, tokens go out through the output queues, once per step.
Only two things come back from request threads: `cancel` and `drain`. Everybody may read
`snapshot`; what a method's docstring does not open to any thread belongs to the decode thread.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock, Thread

from inference_api.engine.options import EngineOptions
from inference_api.engine.runner import ModelRunner
from inference_api.errors import BackendFailed, Draining, HearthError, NotReady, StartupError
from inference_api.request import FinishReason, SessionId, TokenEvent
from inference_api.scheduling.input_queue import InputQueue
from inference_api.scheduling.output_queues import OutputQueues
from inference_api.scheduling.rows import RowTable, UserRow
from inference_api.scheduling.step_plan import StepPlanner
from inference_api.settings import Settings
from inference_api.text.prompt_encoder import PromptEncoder
from inference_api.text.tokens import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # how long an idle loop waits for a prompt before it looks around
JOIN_TIMEOUT_S = 5.0
STALLED_PERIODS = 5
LOADING_RETRY_AFTER_S = 5
DRAINING_RETRY_AFTER_S = 10


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps since start: what they made and where their time went."""

    steps: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens that needed no prefill
    generated_tokens: int = 0
    model_s: float = 0.0  # inside ModelRunner.step
    loop_s: float = 0.0  # the rest of each step


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How the decode thread stood at the end of its last step."""

    stepped_at_s: float
    busy_rows: int = 0
    totals: StepTotals = field(default_factory=StepTotals)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the process does when the decode thread has failed; called once, at its very end."""

    on_load_failed: Callable[[], None] = lambda: None
    on_failed: Callable[[], None] = lambda: None


class DecodeBackend:
    """Continuous batching over `max_users` rows. `start` it once; `stop` joins its thread."""

    runner: ModelRunner
    tokenizer: Tokenizer
    prompt_encoder: PromptEncoder  # once the model is loaded, as the planner
    _planner: StepPlanner

    def __init__(
        self,
        settings: Settings,
        input_queue: InputQueue,
        output_queues: OutputQueues,
        clock: Callable[[], float] = time.monotonic,
        on_decoded: Callable[[int], None] = lambda batch_size: None,
    ) -> None:
        self.settings = settings
        self.max_users = settings.user_rows
        self.hooks = Hooks()
        self.phase = Phase.LOADING
        self.snapshot = Snapshot(stepped_at_s=clock())
        self._input_queue = input_queue
        self._output_queues = output_queues
        self._clock = clock
        self._on_decoded = on_decoded
        self._rows = RowTable(self.max_users)
        self._events: list[tuple[SessionId, TokenEvent]] = []
        self._totals = StepTotals()
        self._failure = ""
        self._lock = Lock()  # guards the four below and changes of the phase
        self._cancelled: set[SessionId] = set()
        self._drain_until_s: float | None = None
        self._on_drained: Callable[[], None] | None = None
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="decode", daemon=True)

    @property
    def users(self) -> list[UserRow | None]:
        """The user rows; None is a free one."""
        return self._rows.users

    # --- any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current step, fail what still runs, join the thread."""
        with self._lock:
            self._is_stopping = True
        self._input_queue.wake()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def drain(self, on_drained: Callable[[], None] | None = None) -> None:
        """Admit nothing more and let what was admitted finish, until the drain timeout.

        `on_drained` is called once no request is left: from the decode thread, or at once when
        that thread serves nobody. Idempotent; the last callback given is the one called.
        """
        with self._lock:
            is_serving = self.phase in (Phase.READY, Phase.DRAINING)
            if self._drain_until_s is None:
                self._drain_until_s = self._clock() + self.settings.drain_timeout_s
            if self.phase in (Phase.LOADING, Phase.READY):
                self.phase = Phase.DRAINING
                self._input_queue.refuse(_draining)
            if is_serving:
                self._on_drained = on_drained or self._on_drained
        self._input_queue.wake()
        if on_drained is not None and not is_serving:
            on_drained()

    def cancel(self, session_id: SessionId) -> None:
        """Forget a session whose client is gone or has all it wants, wherever it is by now."""
        if not self._input_queue.remove(session_id):
            with self._lock:
                self._cancelled.add(session_id)

    def check_admission(self) -> None:
        """Raises what a new request would be told: NotReady, Draining or BackendFailed."""
        if self.phase is Phase.LOADING:
            raise NotReady("The model is still loading, try again later.", LOADING_RETRY_AFTER_S)
        if self.phase is Phase.DRAINING:
            raise _draining()
        if self.phase is not Phase.READY:
            raise _failed()

    def unhealthy_reason(self) -> str | None:
        """Why this process should be replaced, or None while it is well."""
        if self.phase in (Phase.FAILED, Phase.STOPPED):
            return f"decode thread has {self.phase}: {self._failure}"
        silent_s = self._clock() - self.snapshot.stepped_at_s
        limit_s = STALLED_PERIODS * self.settings.keepalive_period_s
        if self.phase is not Phase.LOADING and silent_s > limit_s:
            return f"decode thread has finished no step for {silent_s:.0f} s, limit {limit_s:.0f} s"
        return None

    # --- decode thread --------------------------------------------------------------------

    def load_model_and_tokenizer(self) -> None:
        """Bring the model into memory. Torch is imported here, off the serving threads."""
        from inference_api.engine.engine_runner import EngineRunner
        from inference_api.engine.loading.checkpoint import locate

        model_dir = locate(self.settings.model)
        runner = EngineRunner(model_dir, EngineOptions.from_settings(self.settings))
        self.tokenizer = load_tokenizer(model_dir, runner.eos_token_ids)  # quicker to fail
        runner.load()
        self.runner = runner

    def _post_init_compile(self) -> None:
        """Prepare the device, so that the first request is as fast as the next."""
        self.runner.warm_up()

    def _run(self) -> None:
        try:
            self.load_model_and_tokenizer()
            self._post_init_compile()
        except Exception as error:
            self._fail(error)
            self.hooks.on_load_failed()
            return
        self._become_ready()
        try:
            while not self._is_stopping:
                self.step()
        except Exception as error:
            self._fail(error)
            self.hooks.on_failed()
            return
        self._failure = "the server was stopped"
        self._end_all(Phase.STOPPED, _draining)

    def step(self) -> None:
        """One turn of the loop."""
        started_s, model_s = self._clock(), self._totals.model_s
        self._drop_cancelled()
        self._pick_prompts()
        self.decode()
        self._push_outputs()
        self._evict()
        self._report_status(started_s, model_s)
        self._rest()

    def _drop_cancelled(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, set()
        for row in self._rows.busy():
            if row.session_id in cancelled:
                row.finish_reason = FinishReason.CANCELLED
        self._evict()

    def _pick_prompts(self) -> None:
        while self._rows.has_free_row():
            request = self._input_queue.get()
            if request is None:
                return
            row = self._rows.assign(request, self.runner.max_seq_len, self._clock())
            self._totals.reused_tokens += row.reused_tokens

    def decode(self) -> None:
        """One step of the model; what its rows drew becomes this step's events."""
        step = self._planner.plan()
        if step.is_empty:
            return
        with self._model_time():
            for copy in step.copies:
                self.runner.copy_prefix(*copy)
            results = self.runner.step(step.rows)
        events = step.accept(results)
        for drafted, accepted in step.kept:
            self.runner.keep(drafted, accepted)
        self._events += events
        self._totals.generated_tokens += sum([len(event.token_ids) or 1 for _, event in events])
        self._totals.prefilled_tokens += step.prefilled_tokens
        self._totals.reused_tokens += step.reused_tokens
        if step.decoding:
            self._on_decoded(len(step.decoding))

    def _push_outputs(self) -> None:
        self._output_queues.publish(self._events)
        self._events.clear()

    def _evict(self) -> None:
        for row in self._rows.busy():
            if row.finish_reason is not None:
                self._rows.free(row)
                self.runner.release(row.index)
                self._input_queue.row_is_free()

    def _report_status(self, started_s: float, model_s_before: float) -> None:
        now_s = self._clock()
        model_s = self._totals.model_s - model_s_before
        if model_s > 0.0:  # an idle turn of the loop is not a step
            self._totals.steps += 1
            self._totals.loop_s += now_s - started_s - model_s
        self.snapshot = Snapshot(now_s, len(self._rows), replace(self._totals))

    def _rest(self) -> None:
        """With no row busy, wait for a prompt; when draining, see whether that was the last."""
        if self._drain_until_s is not None:
            self._go_on_draining(self._drain_until_s)
        if not len(self._rows) and not self._is_stopping:
            self._input_queue.wait_for_request(IDLE_WAIT_S)

    def _go_on_draining(self, until_s: float) -> None:
        if self._clock() >= until_s:
            self._drop_all(_draining())
        if not len(self._rows) and not len(self._input_queue):
            with self._lock:
                on_drained, self._on_drained = self._on_drained, None
            if on_drained is not None:
                on_drained()

    def _drop_all(self, error: HearthError) -> None:
        """End every session with `error`, whether it runs, waits or is just about to."""
        self._input_queue.clear()
        for row in self._rows.busy():
            row.finish_reason = FinishReason.ERROR
        self._evict()
        self._output_queues.publish_to_all(TokenEvent((), FinishReason.ERROR, error))

    def _become_ready(self) -> None:
        self._rows = RowTable(self.max_users, self._reuse_unit_tokens())
        self._planner = StepPlanner(self._rows, self.runner, self.settings)
        self.prompt_encoder = PromptEncoder(self.tokenizer, self.runner.max_seq_len)
        with self._lock:
            if self.phase is Phase.LOADING:
                self.phase = Phase.READY
        self.snapshot = Snapshot(self._clock())
        logger.info("ready: %d user rows of %d tokens", self.max_users, self.runner.max_seq_len)

    def _reuse_unit_tokens(self) -> int:
        if not self.settings.prefix_reuse:
            return 0
        return 1 if self.runner.is_batch_invariant else self.settings.prefill_chunk_tokens

    def _fail(self, error: Exception) -> None:
        if isinstance(error, StartupError):
            logger.critical("%s", error)
        else:
            logger.critical("the decode thread died", exc_info=error)
        self._failure = f"{type(error).__name__}: {error}"
        self._rows = RowTable(self.max_users)  # the runner may be broken: release nothing in it
        self._end_all(Phase.FAILED, _failed)

    def _end_all(self, phase: Phase, refusal: Callable[[], HearthError]) -> None:
        with self._lock:
            self.phase = phase
        self._input_queue.refuse(refusal)
        self._drop_all(refusal())
        self.snapshot = replace(self.snapshot, busy_rows=0)

    @contextmanager
    def _model_time(self) -> Iterator[None]:
        started_s = self._clock()
        yield
        self._totals.model_s += self._clock() - started_s


def _draining() -> Draining:
    return Draining("The server is about to stop, try again later.", DRAINING_RETRY_AFTER_S)


def _failed() -> BackendFailed:
    return BackendFailed("The decode thread has failed and the server restarts, try again later.")
