"""Members that come and go, by the real loader thread and real weights."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import copytree
from threading import enumerate as enumerate_threads
from unittest.mock import patch

import pytest

from inference_api.bundle.check import check_bundle
from inference_api.bundle.members import Member, MemberState, UnloadMode
from inference_api.bundle.residents import BundleResidents, bundle_of, needs_of
from inference_api.bundle.states import needed_bytes
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.core.status import Phase
from inference_api.errors import (
    BackendFailed,
    MemberBusy,
    MemberFailed,
    MemberPinned,
    MemberQueueFull,
    MemberUnloaded,
)
from inference_api.inference_api_server import bring_up_of
from inference_api.loading.packing.folder import PackedFolder
from inference_api.model_loading import describe_models
from inference_api.request import (
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
    Switch,
    TokenEvent,
)
from inference_api.settings import EMBEDDED_MODEL, Settings
from inference_api.settings.bundle_file import Bundle
from lab.kit.servers import eventually

NAMES = ("eight", "four", "plain")
PROMPTS = (
    "What is the capital of Kenya, and what is it known for?",
    "How many days has May?",
    "Say 17 + 25.",
    "Hello",
)
WAIT_S = 60.0
LEAST = "1KiB"  # stands for what the largest takes alone, with one row
ROOM_FOR_TWO = "16MiB"  # of eight and four; plain leaves room for none beside it

FILE = """
version: 1
memory_limit: 1GiB
fast_memory_limit: {limit}
patience_s: 0.5
min_residence_s: 0.05
max_queue: {max_queue}
experts:
  - {{name: eight, source: {eight}, quantisation: int8, context: 256, rows: {{min: 1, max: 4}}, \
load: start}}
  - {{name: four, source: {source}, quantisation: int4, context: 256, rows: {{min: 1, max: 4}}, \
pinned: {is_pinned}}}
  - {{name: plain, source: {source}, quantisation: none, context: 256, rows: {{min: 1, max: 4}}}}
"""

PAIR = """
version: 1
memory_limit: 1GiB
fast_memory_limit: {limit}
max_queue: {max_queue}
experts:
  - {{name: pair, target: {{source: {source}}}, draft: {{source: {eight}, tokens: 4}}, \
quantisation: int8, context: 256, rows: {{min: 1, max: 4}}}}
"""


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    last: TokenEvent

    @property
    def switch(self) -> Switch | None:
        return self.last.switch


class Serving:
    """A backend and its queues, asked as request threads ask."""

    def __init__(self, settings: Settings) -> None:
        rows = {model.name: model.user_rows for model in settings.served_models}
        shared = None if settings.bundle is None else settings.all_user_rows
        self.input_queue = InputQueue(settings.queue_capacity, rows, shared_rows=shared)
        self.output_queues = OutputQueues()
        self.requests: dict[OutputQueue, GenerationRequest] = {}
        self.backend = DecodeBackend(
            settings, self.input_queue, self.output_queues, bring_up_of(settings)
        )

    @property
    def bundle(self) -> BundleResidents:
        bundle = bundle_of(self.backend)
        assert bundle is not None
        return bundle

    def start(self) -> None:
        self.backend.start()
        eventually(lambda: self.backend.phase is not Phase.LOADING)
        assert self.backend.phase is Phase.READY

    def submit(self, name: str, prompt: str, max_tokens: int = 12) -> OutputQueue:
        queue = self.output_queues.open(name)
        tokens = tuple(self.backend.served[name].tokenizer.encode(prompt))
        sampling = SamplingParams(temperature=0.0)
        params = GenerationParams(max_tokens, sampling=sampling)
        request = GenerationRequest(queue, name, tokens, params, arrived_s=time.monotonic())
        self.requests[queue] = request
        self.input_queue.put(request)
        return queue

    def ask(self, name: str, prompt: str, max_tokens: int = 12) -> Answer:
        return drained(self.submit(name, prompt, max_tokens))

    def state(self, name: str) -> MemberState:
        return self.bundle.snapshot.members[name].state

    def unload(self, name: str, mode: UnloadMode = UnloadMode.IDLE) -> None:
        self.bundle.ask(lambda residency, now_s: residency.ask_unload(name, mode, now_s))

    def load(self, name: str) -> bool:
        return self.bundle.ask(lambda residency, now_s: residency.ask_load(name, now_s))


def drained(queue: OutputQueue) -> Answer:
    ids: list[int] = []
    while True:
        event = queue.get(WAIT_S)
        assert event is not None, "no event came"
        ids += event.token_ids
        if event.finish_reason is not None:
            return Answer(tuple(ids), event)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture
def serve(tmp_path: Path, packed: Path) -> Iterator[Callable[..., Serving]]:
    running: list[Serving] = []

    def start(
        limit: str = ROOM_FOR_TWO,
        source: Path = EMBEDDED_MODEL,
        is_pinned: str = "false",
        max_queue: int = 64,
        user_rows: int = 8,
        text: str = FILE,
    ) -> Serving:
        def read(limit: str) -> Settings:
            file = tmp_path / "bundle.yaml"
            file.write_text(
                text.format(
                    limit=limit,
                    eight=EMBEDDED_MODEL,
                    source=source,
                    is_pinned=is_pinned,
                    max_queue=max_queue,
                )
            )
            return Settings.model_validate(
                {"bundle": str(file), "packed_folder": str(packed), "user_rows": user_rows}
            )

        settings = read(limit)
        if limit == LEAST:
            assert settings.bundle is not None
            used = check_bundle(settings.bundle, settings).utilization
            assert used is not None
            settings = read(str(used.fast_memory.need_bytes))
        serving = Serving(settings)
        running.append(serving)
        serving.start()
        return serving

    yield start
    for each in running:
        each.backend.stop()


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], tuple[int, ...]]:
    """The answers of servers that have all three models in memory."""
    forms = {"eight": "int8", "four": "int4", "plain": "none"}
    models = [
        {
            "model": str(EMBEDDED_MODEL),
            "model_name": name,
            "quantization": form,
            "max_seq_len": 256,
            "user_rows": 4,
        }
        for name, form in forms.items()
    ]
    serving = Serving(Settings.model_validate({"models": models}))
    serving.start()
    answers = {
        (name, prompt): serving.ask(name, prompt).token_ids for name in NAMES for prompt in PROMPTS
    }
    serving.backend.stop()
    return answers


def test_mixed_requests_get_the_answers_of_their_own_member(
    serve: Callable[..., Serving], alone: dict[tuple[str, str], tuple[int, ...]]
) -> None:
    serving = serve()
    draw = Random(1)
    asked = [(draw.choice(NAMES), draw.choice(PROMPTS)) for _ in range(40)]
    with ThreadPoolExecutor(8) as users:
        answers = list(users.map(lambda each: serving.ask(*each), asked))
    assert [answer.token_ids for answer in answers] == [alone[each] for each in asked]
    snapshot = serving.bundle.snapshot
    assert sum(each.num_loads for each in snapshot.members.values()) > 3
    assert snapshot.used_bytes <= 16 * 2**20


def test_rows_share_the_memory_of_one_and_pause_for_each_other(
    serve: Callable[..., Serving],
) -> None:
    serving = serve(limit=LEAST)
    serving.ask("plain", "Hello")
    queues = [serving.submit("plain", prompt, max_tokens=120) for prompt in PROMPTS]
    eventually(lambda: serving.backend.snapshot.busy_rows > 1)
    together = [drained(queue).token_ids for queue in queues]
    assert serving.backend.snapshot.models["plain"].totals.pauses
    assert together == [serving.ask("plain", each, max_tokens=120).token_ids for each in PROMPTS]
    eventually(lambda: not serving.backend.snapshot.busy_rows)
    assert serving.backend.models["plain"].rows.pages.counts.total == 256 // 32


def test_rows_of_a_pair_share_the_memory_of_one_in_both_of_its_models(
    serve: Callable[..., Serving],
) -> None:
    """Their weights are the same and count once."""
    alone, serving = serve(), serve(limit=LEAST, text=PAIR)
    serving.ask("pair", "Hello")
    queues = [serving.submit("pair", prompt, max_tokens=120) for prompt in PROMPTS]
    together = [drained(queue).token_ids for queue in queues]
    totals = serving.backend.snapshot.models["pair"].totals
    assert totals.pauses
    assert totals.accepted_tokens
    assert together == [alone.ask("eight", each, max_tokens=120).token_ids for each in PROMPTS]
    eventually(lambda: not serving.backend.snapshot.busy_rows)
    pages = serving.backend.models["pair"].all_pages
    assert [(each.counts.held, each.limit) for each in pages] == [(0, 256 // 32)] * 2
    bundle = serving.backend.settings.bundle
    assert bundle is not None
    used = check_bundle(bundle, serving.backend.settings).utilization
    assert used is not None
    [expert] = used.experts
    assert serving.bundle.snapshot.used_bytes == expert.need_bytes


def test_a_draft_that_is_an_expert_too_counts_once(tmp_path: Path) -> None:
    pinned = {"quantisation": "int8", "pinned": True, "context": 256}
    source = copytree(EMBEDDED_MODEL, tmp_path / "model")
    draft = {"source": str(EMBEDDED_MODEL)}
    experts = [
        {"name": "pair", "source": str(source), "draft": draft, **pinned},
        {"name": "alone", **draft, **pinned},
    ]
    limits = {"version": 1, "memory_limit": 2**30, "fast_memory_limit": 2**30}
    bundle = Bundle.model_validate({**limits, "experts": experts})
    settings = Settings(bundle=bundle, user_rows=4)
    used = check_bundle(bundle, settings).utilization
    assert used is not None
    described = describe_models(settings, PackedFolder(tmp_path))
    pairs = zip(bundle.members, described, strict=True)
    members = [Member(each.name, needs_of(each, model)) for each, model in pairs]
    assert used.fast_memory.need_bytes == needed_bytes(members) + used.scratch_bytes
    assert used.fast_memory.need_bytes < sum(each.need_bytes for each in used.experts)


def test_request_that_waited_for_its_member_says_how_long(serve: Callable[..., Serving]) -> None:
    serving = serve()
    assert serving.ask("eight", "Hello").switch is None
    started_s = time.monotonic()
    first = serving.ask("plain", "Hello")
    assert first.switch is not None
    assert first.switch.is_initiator
    assert first.switch.from_name == "eight"
    assert 0 < first.switch.switching_time_s < time.monotonic() - started_s
    assert serving.ask("plain", "Hello").switch is None
    assert serving.ask("eight", "Hello").switch is not None


def test_member_that_returns_remembers_nothing_of_its_rows(
    serve: Callable[..., Serving], alone: dict[tuple[str, str], tuple[int, ...]]
) -> None:
    serving = serve()
    prompt = PROMPTS[0]
    for name in ("eight", "plain", "eight", "plain"):
        assert serving.ask(name, prompt).token_ids == alone[name, prompt]
    # A prompt that a row held before it left would be reused here.
    assert serving.ask("eight", prompt).last.reused_tokens == 0
    assert serving.ask("eight", prompt).last.reused_tokens > 0


def test_corrupt_member_fails_by_itself_and_is_there_once_mended(
    serve: Callable[..., Serving], tmp_path: Path
) -> None:
    source = copytree(EMBEDDED_MODEL, tmp_path / "model")
    weights = source / "model.safetensors"
    sound = weights.read_bytes()
    serving = serve(source=source)
    weights.write_bytes(sound[: len(sound) // 2])
    refused = serving.ask("four", "Hello").last
    assert isinstance(refused.error, MemberFailed)
    assert "four failed: " in str(refused.error)
    assert refused.error.status == 503
    assert serving.state("four") is MemberState.FAILED
    assert serving.ask("eight", "Hello").last.finish_reason is FinishReason.LENGTH
    assert isinstance(serving.ask("four", "Hello").last.error, MemberFailed)
    weights.write_bytes(sound)
    assert serving.ask("four", "Hello").last.finish_reason is FinishReason.LENGTH


def test_operators_unload_what_is_idle_and_not_what_is_pinned(
    serve: Callable[..., Serving],
) -> None:
    serving = serve(is_pinned="true", limit="64MiB")
    with pytest.raises(MemberPinned, match="four is pinned"):
        serving.unload("four")
    serving.unload("eight")
    eventually(lambda: serving.state("eight") is MemberState.ON_DISK)
    assert not serving.load("eight")
    eventually(lambda: serving.state("eight") is MemberState.RESIDENT)
    assert serving.load("eight")


def test_busy_member_is_unloaded_after_its_rows_or_by_force(serve: Callable[..., Serving]) -> None:
    serving = serve()
    queue = serving.submit("eight", "Hello", max_tokens=500)
    assert queue.get(WAIT_S) is not None
    with pytest.raises(MemberBusy, match="1 running"):
        serving.unload("eight")
    serving.unload("eight", UnloadMode.DRAIN)
    assert drained(queue).last.finish_reason is FinishReason.LENGTH
    eventually(lambda: serving.state("eight") is MemberState.ON_DISK)
    queue = serving.submit("eight", "Hello", max_tokens=1000)
    assert queue.get(WAIT_S) is not None
    serving.unload("eight", UnloadMode.FORCE)
    last = drained(queue).last
    assert isinstance(last.error, MemberUnloaded)
    eventually(lambda: serving.state("eight") is MemberState.ON_DISK)


def test_cancelled_request_leaves_the_member_to_others(serve: Callable[..., Serving]) -> None:
    serving = serve()
    gone = serving.submit("plain", "Hello")
    serving.backend.cancel(serving.requests[gone])
    assert serving.ask("plain", "Hello").last.finish_reason is FinishReason.LENGTH
    eventually(lambda: not serving.backend.snapshot.busy_rows)


def test_queue_is_bounded_for_all_members_together(serve: Callable[..., Serving]) -> None:
    serving = serve(max_queue=4, user_rows=4)

    def fill() -> None:
        for _ in range(100):
            serving.submit("plain", "Hello", max_tokens=200)

    with pytest.raises(MemberQueueFull, match=r"plain: \d+ waiting") as refusal:
        fill()
    assert refusal.value.status == 429
    assert refusal.value.retry_after_s is not None


def test_members_stay_known_after_the_decode_thread_has_died(serve: Callable[..., Serving]) -> None:
    serving = serve()
    backend = serving.backend
    with patch.object(backend, "decode", side_effect=RuntimeError("the device has left")):
        last = serving.ask("eight", "Hello").last
    assert isinstance(last.error, BackendFailed)
    eventually(lambda: backend.phase is Phase.FAILED)
    assert set(backend.served) == set(backend.snapshot.models) == set(NAMES)
    backend.stop()
    assert "loader" not in [thread.name for thread in enumerate_threads()]
