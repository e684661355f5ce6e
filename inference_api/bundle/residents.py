"""Carries out the decisions of `residency`: loads and unloads the members of a bundle.

Decode thread only, except where noted. A loader thread does the loading.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from inference_api.bundle import loader
from inference_api.bundle.check import check_bundle
from inference_api.bundle.members import (
    Effect,
    EndRows,
    LoadMember,
    MemberState,
    Needs,
    Policy,
    Refuse,
    Unload,
)
from inference_api.bundle.page_loans import PageLoans
from inference_api.bundle.residency import Residency
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.loaded_model import LoadedModel
from inference_api.core.residents import Residents
from inference_api.core.rows import UserRow
from inference_api.errors import MemberFailed, MemberUnloaded, StartupError
from inference_api.model_loading import LoadableModel, Stamp, describe_models
from inference_api.request import FinishReason, TokenEvent
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle, BundleMember

TIMER_S = 0.05  # precision of patience and residence times while no request runs
FAILED_RETRY_AFTER_S = 30
ANSWER_TIMEOUT_S = 30.0  # an operator's call waits at most this long for a turn of the loop

Answer = TypeVar("Answer")


class BundleResidents(Residents):
    """The members of a bundle, which are loaded when requests come for them."""

    def __init__(
        self,
        bundle: Bundle,
        policy: Policy,
        members: Mapping[str, LoadableModel],
        input_queue: InputQueue,
        slot_bytes: int | None = None,
    ) -> None:
        """`members` are the bundle's, by name. For `slot_bytes` see `needs_of`."""
        self.models = {}
        self.served = {name: member.served for name, member in members.items()}
        needs = {
            each.name: needs_of(each, members[each.name], slot_bytes) for each in bundle.members
        }
        self._at_start = [each.name for each in bundle.members if each.is_loaded_at_start]
        self._residency = Residency(needs, policy)
        self.snapshot = self._residency.snapshot()  # any thread may read it
        self._needs = needs
        self._loans = PageLoans(self._residency)
        self._num_started = 0
        self._input_queue = input_queue
        self._members = members
        self._failed: dict[str, Stamp] = {}  # stamps of files that failed to load
        self._loader = loader.MemberLoader(members, input_queue.wake)
        self._questions: SimpleQueue[Callable[[], Callable[[], None]]] = SimpleQueue()

    # --- any thread -----------------------------------------------------------------------

    def ask(self, question: Callable[[Residency, float], Answer]) -> Answer:
        """Have the decode thread call `question` in its next turn. Returns its answer, when
        `snapshot` shows the effect. Raises its error, or TimeoutError if no turn comes."""
        answer: Future[Answer] = Future()

        def settle() -> Callable[[], None]:
            try:
                result = question(self._residency, time.monotonic())
            except Exception as error:
                return partial(answer.set_exception, error)
            return partial(answer.set_result, result)

        self._questions.put(settle)
        self._input_queue.wake()
        return answer.result(ANSWER_TIMEOUT_S)

    def start(self, now_s: float) -> None:
        self._loader.start()
        for name in self._at_start:
            self._residency.ask_load(name, now_s)

    def stop(self) -> None:
        self._loader.stop()

    # --- decode thread --------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        """Returns whether the members that load at start are loaded. Raises StartupError if all of
        them failed."""
        states = [self.snapshot.members[name] for name in self._at_start]
        failed = [each for each in states if each.state is MemberState.FAILED]
        if failed and len(failed) == len(states):
            raise StartupError([each.reason for each in failed])
        return all(each.state in (MemberState.RESIDENT, MemberState.FAILED) for each in states)

    def turn(self, now_s: float) -> None:
        for event in self._loader.events():
            self._handle(event, now_s)
        settled = [self._questions.get_nowait()() for _ in range(self._questions.qsize())]
        waiting = self._input_queue.all_waiting()
        if self._residency.is_short(waiting):
            self._loans.call_in()  # pages that no row holds must not keep a member or row waiting
        for effect in self._residency.advance(now_s, waiting):
            self._execute(effect)
        self.snapshot = self._residency.snapshot()
        for report in settled:
            report()

    def to_start(self, now_s: float) -> Iterator[LoadedModel]:
        while (model := self._next_to_start()) is not None:
            num_started = self._num_started
            yield model
            if self._num_started == num_started:
                return  # the request has left meanwhile, so the order is out of date

    def started(self, model: LoadedModel, row: UserRow, now_s: float) -> None:
        self._num_started += 1
        self._residency.started(model.name, now_s)
        row.switch = self._residency.switch_of(model.name, row.request.arrived_s)

    def ended(self, model: LoadedModel, now_s: float) -> None:
        self._residency.ended(model.name, now_s)

    def idle_s(self, now_s: float) -> float:
        return math.inf if self._residency.is_settled else TIMER_S

    def _next_to_start(self) -> LoadedModel | None:
        """Returns the model whose next request starts now, if any."""
        for name in self._residency.order():
            model, request = self.models[name], self._input_queue.peek(name)
            is_sure = self._residency.is_sure(name)
            if request is not None and model.rows.may_admit(request, is_sure):
                return model
        return None

    def _handle(self, event: loader.LoaderEvent, now_s: float) -> None:
        match event:
            case loader.Packing(name):
                self._residency.packing(name)
            case loader.Loaded(name, model):
                self.models = {**self.models, name: model}
                if not model.runner.layout.is_bound:  # bound pages always have memory
                    self._share_pages(name, model)
                self._residency.loaded(name, now_s)
            case loader.LoadFailed(name, reason, failure, stamp):
                self._failed[name] = stamp
                self._residency.load_failed(name, reason, now_s, failure)
            case loader.Unloaded(name):
                self._residency.unloaded(name, now_s)

    def _share_pages(self, name: str, model: LoadedModel) -> None:
        footprints, rows_min = self._members[name].footprints, self._needs[name].rows_min
        own_pages, *of_draft = [each.guaranteed_pages(rows_min) for each in footprints]
        self._loans.add(name, model.rows, own_pages)
        for each in of_draft:
            assert model.drafter is not None, "only it has a footprint"
            self._loans.add_draft(name, model.drafter.pages, each, model.drafter.give_up)

    def _is_mended(self, name: str) -> bool:
        """Returns whether the files of a failed member have changed since."""
        return name in self._failed and self._failed[name] != self._members[name].stamp()

    def _execute(self, effect: Effect) -> None:
        match effect:
            case LoadMember(name):
                self._failed.pop(name, None)
                self._loader.load(name)
            case Unload(name):
                self._loans.remove(name)
                self.models = {each: model for each, model in self.models.items() if each != name}
                self._loader.unload(name)
            case Refuse(name) if self._is_mended(name):
                self._residency.source_changed(name)
                self._input_queue.wake()  # so that the next turn loads it
            case Refuse(name, reason):
                error = MemberFailed(name, reason, FAILED_RETRY_AFTER_S)
                ended = TokenEvent((), FinishReason.ERROR, error)
                for request in self._input_queue.take_all(name):
                    request.output.put(ended)
            case EndRows(name):
                ended = TokenEvent((), FinishReason.ERROR, MemberUnloaded(name))
                rows = self.models[name].rows
                for row in (*rows.busy(), *rows.paused):
                    row.finish_reason = FinishReason.ERROR
                    row.request.output.put(ended)


def needs_of(member: BundleMember, model: LoadableModel, slot_bytes: int | None = None) -> Needs:
    """Returns the memory and rows of a member, without its tokenizer, which is always loaded. On
    CUDA it takes a whole slot of `slot_bytes`, with room for all its rows."""
    rows_min, weights_bytes, footprints = member.rows.min, model.weights_bytes, model.footprints
    of_rows = Needs(
        weights_bytes=weights_bytes,
        other_bytes=0,
        guaranteed_bytes=sum(each.guaranteed_bytes(rows_min) for each in footprints),
        row_bytes=sum(each.row_bytes for each in footprints),
        rows_min=rows_min,
        rows_max=model.runner.max_rows,
        is_pinned=member.pinned,
        shared=model.shared_weights,
    )
    if slot_bytes is None:
        return of_rows
    cache_bytes = sum(each.cache_bytes for each in footprints)
    other_bytes = slot_bytes - weights_bytes - cache_bytes
    in_slot = replace(of_rows, other_bytes=other_bytes, guaranteed_bytes=cache_bytes)
    return replace(in_slot, row_bytes=0, shared={})


def bundle_of(backend: DecodeBackend) -> BundleResidents | None:
    """Returns the served bundle's residents; None until its members are known. Any thread."""
    residents = backend.residents
    return residents if isinstance(residents, BundleResidents) else None


def bring_up(backend: DecodeBackend) -> None:
    """Serve the bundle of the settings. Raises StartupError."""
    settings, bundle = backend.settings, backend.settings.bundle
    assert bundle is not None
    input_queue, pause = backend.input_queue, backend.let_decode
    backend.take_residents(bundle_residents(bundle, settings, input_queue, pause))


def bundle_residents(
    bundle: Bundle, settings: Settings, input_queue: InputQueue, pause: Callable[[], None]
) -> BundleResidents:
    """Returns the bundle's members, described but not loaded. `pause` is called again and again
    during a load. Raises StartupError."""
    from inference_api.engine.devices import make_slots
    from inference_api.loading.packing.folder import PackedFolder

    checked = check_bundle(bundle, settings)
    if not checked.valid:
        raise StartupError([f"BUNDLE: {error}" for error in checked.errors])
    assert checked.utilization is not None
    policy = Policy(
        bundle.fast_memory_limit - checked.utilization.scratch_bytes,
        settings.user_rows,
        bundle.patience_s,
        bundle.min_residence_s,
        bundle.load_timeout_s,
    )
    packed = PackedFolder(settings.packed_folder, pause)
    is_on_cuda = settings.device == "cuda"
    slots = make_slots(pause, bundle.memory_limit) if is_on_cuda else None
    members = {each.served.name: each for each in describe_models(settings, packed, slots)}
    if slots is None:
        return BundleResidents(bundle, policy, members, input_queue)
    largest_bytes = max(each.slot_bytes for each in members.values())
    num_slots = min(policy.fast_memory_limit_bytes // largest_bytes, len(members))
    slots.allocate(num_slots, largest_bytes)
    return BundleResidents(bundle, policy, members, input_queue, largest_bytes)
