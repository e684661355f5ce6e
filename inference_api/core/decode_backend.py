"""The decode thread: a loop over the user rows, and the only caller of the model.

Requests come in through the input queue; tokens go out through the output queues, once per step.
Any thread may read `snapshot` and call the methods of the section *any thread*. Only the decode
thread may call the others.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock, Thread

from inference_api.core.batching import Batching
from inference_api.core.input_queue import InputQueue
from inference_api.core.loaded_model import LoadedModel, snapshot_of
from inference_api.core.output_queues import OutputQueues
from inference_api.core.plan import PlannedStep
from inference_api.core.residents import FixedModels, Residents
from inference_api.core.rows import UserRow
from inference_api.core.served_model import ServedModel
from inference_api.core.status import Hooks, ModelSnapshot, Phase, Snapshot
from inference_api.errors import BackendFailed, Draining, HearthError, NotReady, StartupError
from inference_api.request import FinishReason, GenerationRequest, TokenEvent
from inference_api.settings import Settings

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # an idle loop waits this long for a request, then does maintenance
WRITER_WAIT_S = 0.01  # instead of IDLE_WAIT_S, while pages wait to be written to disk
FLUSH_S = 3.0  # time to write pages to disk once the loop has stopped
JOIN_TIMEOUT_S = 10.0
LOADER_PAUSE_S = 0.002  # a loader pauses this long after a few milliseconds of work
STALLED_PERIODS = 5  # keepalive periods without a step after which the loop counts as stalled
LOADING_RETRY_AFTER_S = 5
DRAINING_RETRY_AFTER_S = 10
YIELD_EVENTS = 4  # waking this many threads hardly delays the next step

yield_processor = ctypes.CDLL(None).sched_yield  # `os.sched_yield` does not release the GIL

BringUp = Callable[["DecodeBackend"], None]


class DecodeBackend:
    """Runs the requests of all models in their user rows. Call `start` once, and `stop` at the end.

    From READY on, `served` has all models by name, the default first; `models` has those that are
    in memory. `bring_up` runs on the decode thread and must call `take` or `take_residents`.
    """

    def __init__(
        self,
        settings: Settings,
        input_queue: InputQueue,
        output_queues: OutputQueues,
        bring_up: BringUp | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_stepped: Callable[[str, int, float], None] = lambda model, batch_size, seconds: None,
    ) -> None:
        self.settings = settings
        self.max_users = settings.all_user_rows
        self.served: Mapping[str, ServedModel] = {}
        self.hooks = Hooks()
        self.phase = Phase.LOADING
        self.snapshot = Snapshot(
            clock(), {each.name: ModelSnapshot() for each in settings.served_models}
        )
        self.input_queue = input_queue
        self.output_queues = output_queues
        self._bring_up = bring_up
        self._clock = clock
        self._on_stepped = on_stepped
        self.residents: Residents = self._fixed(())  # set by `bring_up`; any thread may read it
        self._residents: Residents = self.residents  # the loop's; emptied after a failure
        self._stepped: list[tuple[LoadedModel, PlannedStep]] = []  # in this turn
        self._failure = ""
        self._lock = Lock()  # guards the next three fields and changes of the phase
        self._drain_until_s: float | None = None
        self._on_drained: Callable[[], None] | None = None
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="decode", daemon=True)

    @property
    def models(self) -> Mapping[str, LoadedModel]:
        return self._residents.models

    @property
    def users(self) -> list[UserRow | None]:
        """The user rows of all models, None for each free row."""
        users = [user for model in self.models.values() for user in model.rows.users]
        return users or [None] * self.max_users

    # --- any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current step, end requests that still run, and join the thread."""
        with self._lock:
            self._is_stopping = True
        self.input_queue.wake()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)
        self.residents.stop()

    def drain(self, on_drained: Callable[[], None] | None = None) -> None:
        """Admit no more requests, and let the admitted ones finish until the drain timeout.

        `on_drained` is called once no request is left: on the decode thread, or at once if that
        thread is not serving. Idempotent; of several callbacks, only the last is called.
        """
        with self._lock:
            is_serving = self.phase in (Phase.READY, Phase.DRAINING)
            if self._drain_until_s is None:
                self._drain_until_s = self._clock() + self.settings.drain_timeout_s
            if self.phase in (Phase.LOADING, Phase.READY):
                self.phase = Phase.DRAINING
                self.input_queue.refuse(_draining)
            if is_serving:
                self._on_drained = on_drained or self._on_drained
        self.input_queue.wake()
        if on_drained is not None and not is_serving:
            on_drained()

    def cancel(self, request: GenerationRequest) -> None:
        """End a queued or running request whose client has gone or needs no more tokens."""
        self.output_queues.close(request.output)
        self.input_queue.remove(request)

    def check_admission(self) -> None:
        """Raises NotReady, Draining or BackendFailed if the server admits no requests now."""
        if self.phase is Phase.LOADING:
            raise NotReady("The model is still loading, try again later.", LOADING_RETRY_AFTER_S)
        if self.phase is Phase.DRAINING:
            raise _draining()
        if self.phase is not Phase.READY:
            raise _failed()

    def unhealthy_reason(self) -> str | None:
        """Returns why this process should be replaced, or None while it is healthy."""
        if self.phase in (Phase.FAILED, Phase.STOPPED):
            return f"decode thread has {self.phase}: {self._failure}"
        silent_s = self._clock() - self.snapshot.stepped_at_s  # while loading: since `start`
        state, limit_s = "has finished no step", STALLED_PERIODS * self.settings.keepalive_period_s
        if self.phase is Phase.LOADING:
            state, limit_s = "is still loading", self.settings.load_timeout_s
        if silent_s <= limit_s:
            return None
        return f"decode thread {state} after {silent_s:.0f} s, limit {limit_s:.0f} s"

    # --- decode thread --------------------------------------------------------------------

    def load_model_and_tokenizer(self) -> None:
        """Bring the models into memory, off the serving threads."""
        assert self._bring_up is not None, "whoever makes a backend without it calls `take`"
        self._bring_up(self)

    def take(self, models: Iterable[LoadedModel]) -> None:
        """Serve these models from now on; the first one is the default."""
        self.take_residents(self._fixed(models))

    def take_residents(self, residents: Residents) -> None:
        """Serve these residents. Returns once the models that load at start are in memory."""
        self.served = residents.served
        self.residents = self._residents = residents
        residents.start(self._clock())
        while not (residents.has_started or self._is_stopping):
            residents.turn(self._clock())
            self.input_queue.wait_for_request(IDLE_WAIT_S)

    def let_decode(self) -> None:
        """Pause briefly if the decode thread has work. A loader thread calls it."""
        if self._num_admitted():
            time.sleep(LOADER_PAUSE_S)

    def _fixed(self, models: Iterable[LoadedModel]) -> FixedModels:
        return FixedModels(models, self.input_queue, Batching.of(self.settings))

    def _post_init_compile(self) -> None:
        """Warm the models up, so that the first request is as fast as later ones."""
        for model in self.models.values():
            model.warm_up()

    def _run(self) -> None:
        try:
            self.load_model_and_tokenizer()
            self._post_init_compile()
            self.hooks.on_loaded()
            self._become_ready()
        except Exception as error:
            self._fail(error)
            self.hooks.on_load_failed()
            return
        try:
            while not self._is_stopping:
                self.step()
        except Exception as error:
            self._fail(error)
            self.hooks.on_failed()
            return
        self._failure = "the server was stopped"
        self._end_all(Phase.STOPPED, _draining)
        for model in self.models.values():
            model.flush_pages(FLUSH_S / len(self.models))
        for model in self.models.values():
            model.close()

    def step(self) -> None:
        """One turn of the loop."""
        started_s = self._clock()
        self._drop_closed()
        self._residents.turn(started_s)
        self._pick_prompts()
        self.decode()
        has_first_token = self._has_first_token()
        self._push_outputs()
        self._evict()
        self._report_status(started_s)
        # Linux may put a thread that this one wakes on the same processor even if another one is
        # idle, and leave both there until the next tick. A first token would be milliseconds late.
        if has_first_token:
            yield_processor()
        self._rest()

    def _admitted(self) -> Iterator[tuple[LoadedModel, UserRow]]:
        for model in self.models.values():
            for row in (*model.rows.busy(), *model.rows.paused):
                yield model, row

    def _num_admitted(self) -> int:
        return sum(len(model.rows) + len(model.rows.paused) for model in self.models.values())

    def _drop_closed(self) -> None:
        """Free the rows of requests whose output queue is closed."""
        for _, row in self._admitted():
            if row.request.output.is_closed:
                row.finish_reason = FinishReason.CANCELLED
        self._evict()

    def _pick_prompts(self) -> None:
        now_s = self._clock()
        for model in self.models.values():
            model.rows.resume()
        for model in self._residents.to_start(now_s):
            request = self.input_queue.get(model.name)
            if request is None:  # it was cancelled meanwhile
                continue
            row = model.rows.assign(request, model.runner.max_seq_len, now_s)
            self._residents.started(model, row, now_s)
            model.served.totals.reused_tokens += row.reused_tokens

    def decode(self) -> None:
        """Run one step of every model that has work."""
        for model in self.models.values():
            step = model.decode(self._clock)
            if not step.is_empty:
                self._stepped.append((model, step))
        for model in () if self._stepped else self.models.values():
            model.wait_for_pages()

    def _push_outputs(self) -> None:
        for _, step in self._stepped:
            for queue, event in step.events:
                queue.put(event)

    def _has_first_token(self) -> bool:
        """Returns whether this turn has at most YIELD_EVENTS events, one of them a first token."""
        decoded = [row for _, step in self._stepped for row, _ in step.decoding]
        return len(decoded) <= YIELD_EVENTS and any(len(row.generated) == 1 for row in decoded)

    def _evict(self) -> None:
        for model, row in self._admitted():
            if row.finish_reason is not None:
                model.rows.free(row)
                self.input_queue.row_is_free(model.name)
                self._residents.ended(model, self._clock())

    def _report_status(self, started_s: float) -> None:
        """Tell each stepped model its seconds. They share the time outside their steps."""
        now_s = self._clock()
        stepped, self._stepped = self._stepped, []
        loop_s = now_s - started_s - sum([step.model_s for _, step in stepped])
        for model, step in stepped:
            model.learn_turn(step, step.model_s, loop_s / len(stepped))
            self._on_stepped(model.name, len(step.decoding), step.model_s + loop_s / len(stepped))
        for each in self.models.values():
            each.served.costs.publish(time.time())
        self._publish(now_s)

    def _publish(self, now_s: float) -> None:
        """Replace the snapshot that other threads read."""
        models = {name: snapshot_of(each, self.models) for name, each in self.served.items()}
        self.snapshot = Snapshot(now_s, models or self.snapshot.models)

    def _rest(self) -> None:
        """Wait for a request if none is running. While draining, check whether all have ended."""
        if self._drain_until_s is not None:
            self._go_on_draining(self._drain_until_s)
        has_pages = [name for name, model in self.models.items() if model.write_pages()]
        if not self._num_admitted() and not self._is_stopping:
            if not len(self.input_queue):
                for model in self.models.values():
                    model.idle()
            idle_s = min(IDLE_WAIT_S, self._residents.idle_s(self._clock()))
            self.input_queue.wait_for_request(min(idle_s, WRITER_WAIT_S) if has_pages else idle_s)

    def _go_on_draining(self, until_s: float) -> None:
        if self._clock() >= until_s:
            self._drop_all(_draining())
        if not self._num_admitted() and not len(self.input_queue):
            self._report_drained()

    def _report_drained(self) -> None:
        with self._lock:
            on_drained, self._on_drained = self._on_drained, None
        if on_drained is not None:
            on_drained()

    def _drop_all(self, error: HearthError) -> None:
        """End every session with `error`, whether it is running, waiting or about to be queued."""
        self.input_queue.clear()
        for _, row in self._admitted():
            row.finish_reason = FinishReason.ERROR
        self._evict()
        self.output_queues.put_to_all(TokenEvent((), FinishReason.ERROR, error))

    def _become_ready(self) -> None:
        with self._lock:
            if self.phase is Phase.LOADING:
                self.phase = Phase.READY
        self._publish(self._clock())
        for model in self.models.values():
            of_model = f"{model.name}: " if len(self.models) > 1 else ""
            num_rows, context_tokens = model.runner.max_rows, model.runner.max_seq_len
            logger.info("%sready: %d user rows of %d tokens", of_model, num_rows, context_tokens)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, StartupError):
            logger.critical("%s", error)
        else:
            logger.critical("the decode thread died", exc_info=error)
        self._failure = f"{type(error).__name__}: {error}"
        # The runners may be broken, so nothing is released in them and no more models are loaded.
        self._residents = self._fixed(map(LoadedModel.emptied, self.models.values()))
        self._end_all(Phase.FAILED, _failed)
        self._report_drained()

    def _end_all(self, phase: Phase, refusal: Callable[[], HearthError]) -> None:
        with self._lock:
            self.phase = phase
        self.input_queue.refuse(refusal)
        self._drop_all(refusal())
        self._publish(self.snapshot.stepped_at_s)


def _draining() -> Draining:
    return Draining("The server is about to stop, try again later.", DRAINING_RETRY_AFTER_S)


def _failed() -> BackendFailed:
    return BackendFailed("The decode thread has failed and the server restarts, try again later.")
