"""Requests that leave their rows to others for want of pages say what they would alone."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from inference_api._mock_inference_api_server import ByteTokenizer, EchoRunner
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.inference_api_server import bring_up_of
from inference_api.model_loading import loaded_alone
from inference_api.request import (
    ConstraintSpec,
    GenerationParams,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from inference_api.runner import PageLayout
from inference_api.settings import EMBEDDED_MODEL, Settings

NAME = "hearth-tiny"
ROWS, CONTEXT = 6, 256
FEW_PAGES = "2.6MiB"  # 16 pages in float32, where six rows of 256 tokens need 48
TALE = "once upon a time there was a little fox who liked to sing and dance in the wood"
WORDS = TALE.split()
GREEDY = SamplingParams(temperature=0.0, num_logprobs=2)
SEEDED = SamplingParams(temperature=0.9, top_k=40, seed=5, repetition_penalty=1.1)
KINDS = ("greedy", "seeded", "constrained", "scored", "mean", "last")


class Server:
    """The embedded model, driven step by step on this thread."""

    def __init__(self, **settings: object) -> None:
        own = {"user_rows": ROWS, "max_seq_len": CONTEXT, "prefill_chunk_tokens": 16}
        chosen = Settings.model_validate(own | settings)
        self.input_queue, self.output_queues = InputQueue(64, {NAME: ROWS}), OutputQueues()
        self.backend = DecodeBackend(
            chosen, self.input_queue, self.output_queues, bring_up_of(chosen)
        )
        self.backend.load_model_and_tokenizer()
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()

    @property
    def num_pauses(self) -> int:
        return self.backend.snapshot.totals.pauses

    def request(self, kind: str, text: str, max_tokens: int) -> GenerationRequest:
        served = self.backend.served[NAME]
        request = GenerationRequest(
            self.output_queues.open(NAME),
            NAME,
            tuple(served.tokenizer.encode(text)),
            params := GenerationParams(max_tokens, sampling=SEEDED if kind == "seeded" else GREEDY),
        )
        match kind:
            case "constrained":
                grammar = served.grammars.compiled(ConstraintSpec("regex", "regex", "[a-z ,.]+"))
                return replace(request, grammar=grammar)
            case "scored":
                return replace(request, params=replace(params, num_prompt_logprobs=1))
            case "mean" | "last":
                return replace(request, params=replace(params, pooling=kind, max_tokens=1))
        return request

    def run(
        self, asked: Sequence[tuple[str, str, int]], leaving: frozenset[int] = frozenset()
    ) -> list[list[TokenEvent]]:
        """What each is told when all ask at once; `leaving` hang up as soon as two have paused."""
        requests = [self.request(*each) for each in asked]
        for request in requests:
            self.input_queue.put(request)
        events: list[list[TokenEvent]] = [[] for _ in requests]
        open_ones = set(range(len(requests)))
        before = self.num_pauses
        while open_ones:
            if self.num_pauses >= before + 2:
                for number in leaving & open_ones:
                    self.backend.cancel(requests[number])
                open_ones -= leaving
            self.backend.step()
            for number in [*open_ones]:
                while (event := requests[number].output.get(0.0)) is not None:
                    events[number].append(event)
                    if event.finish_reason is not None:
                        open_ones.discard(number)
        for _ in range(3):
            self.backend.step()
        return events

    def check_that_all_pages_are_free(self) -> None:
        model, told = self.backend.models[NAME], self.backend.snapshot.models[NAME]
        assert (len(model.rows), model.rows.paused) == (0, [])
        counts = [told.pages, told.draft_pages][: len(model.all_pages)]
        assert counts == [pages.counts for pages in model.all_pages]
        for pages in model.all_pages:
            assert pages.counts.held == 0
            pages.forget_cached()
            assert pages.counts.free == pages.counts.total


@cache
def asked(seed: int, count: int = 12) -> tuple[tuple[str, str, int], ...]:
    random = Random(seed)
    beginning = " ".join(random.choices(WORDS, k=25))
    made = []
    for number in range(count):
        own = " ".join(random.choices(WORDS, k=random.randrange(1, 40)))
        text = f"{beginning} {own}" if random.random() < 0.5 else own
        made.append((KINDS[number % len(KINDS)], text, random.randrange(60, 150)))
    return tuple(made)


def said(events: Sequence[TokenEvent]) -> object:
    """What the session gets to see, whatever steps it came in."""
    return (
        [token for each in events for token in each.token_ids],
        [logprobs for each in events for logprobs in each.logprobs],
        events[0].prompt_logprobs,
        events[0].embedding,
        events[-1].finish_reason,
    )


@pytest.fixture(autouse=True)
def nothing_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many pauses."""
    monkeypatch.setattr("inference_api.core.rows.SPARE_PAGES", 0)


class Ample(Server):
    """With pages for all."""

    def __init__(self, **settings: object) -> None:
        super().__init__(prefix_reuse=False, **settings)
        self.alone = cache(self._alone)

    def _alone(self) -> list[object]:
        """What `asked(1)` are told when each is served alone."""
        return [said(self.run([each])[0]) for each in asked(1)]


@pytest.fixture(scope="module")
def ample() -> Ample:
    return Ample()


OTHERWISE: list[dict[str, object]] = [
    {},
    {"prefix_reuse": False},
    {"speculation": "ngram"},
    {"speculation": "medusa"},
    {
        "speculation": "draft",
        "draft_model": str(EMBEDDED_MODEL),
        "kv_cache_memory": "5.2MiB",  # as many pages for each of the two
    },
]


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, if its layers saw 40 positions, all but two of them."""
    folder = tmp_path_factory.mktemp("windowed") / NAME
    shutil.copytree(EMBEDDED_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    kinds = ["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention", "full_attention"]
    config |= {"model_type": "smollm3", "no_rope_layers": [1] * 5, "layer_types": kinds}
    config |= {"use_sliding_window": True, "sliding_window": 40}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def ample_windowed(windowed: Path) -> Ample:
    return Ample(model=str(windowed))


@pytest.mark.parametrize("more", OTHERWISE[:3])
def test_answers_do_not_depend_on_what_windows_give_back(
    windowed: Path,
    ample_windowed: Ample,
    more: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference_api.runner.MAX_STEP_TOKENS", 33)
    server = Server(model=str(windowed), kv_cache_memory="1.6MiB", **more)
    assert server.backend.models[NAME].runner.layout.has_windows
    found = server.run(asked(1))
    assert server.num_pauses > 0
    assert list(map(said, found)) == ample_windowed.alone()
    server.check_that_all_pages_are_free()


@pytest.mark.parametrize("more", OTHERWISE)
def test_answers_do_not_depend_on_pauses(ample: Ample, more: dict[str, object]) -> None:
    server = Server(**{"kv_cache_memory": FEW_PAGES} | more)
    found = server.run(asked(1))
    assert server.num_pauses > 0
    assert list(map(said, found)) == ample.alone()
    server.check_that_all_pages_are_free()


def test_whoever_leaves_while_others_wait_for_pages_leaves_nothing_behind(ample: Ample) -> None:
    server, leaving = Server(kv_cache_memory=FEW_PAGES), frozenset({0, 3, 6, 9})
    found = server.run(asked(3), leaving)
    assert server.num_pauses > 0
    for number, each in enumerate(asked(3)):
        if number not in leaving:
            assert said(found[number]) == said(ample.run([each])[0])
    server.check_that_all_pages_are_free()


class EchoOfFewPages(EchoRunner):
    """Has a sixteenth of the pages that all its rows could hold."""

    @property
    def layout(self) -> PageLayout:
        of_all_rows = super().layout
        return of_all_rows._replace(num_pages=of_all_rows.num_pages // 16)


def test_of_120_requests_none_is_lost_stuck_or_changed() -> None:
    """Of 10 to 8,000 tokens, on few pages; every seventh client leaves somewhere on the way."""
    random = Random(7)
    settings = Settings(user_rows=32, max_seq_len=8192, prefill_chunk_tokens=2048)
    queue, queues = InputQueue(120, {NAME: 32}), OutputQueues()
    backend = DecodeBackend(settings, queue, queues)
    backend.take([loaded_alone(NAME, EchoOfFewPages(32, 8192), ByteTokenizer(), settings)])
    backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
    backend._become_ready()
    system = tuple(random.choices(range(256), k=300))
    requests: list[GenerationRequest] = []
    for number in range(120):
        own = tuple(random.choices(range(256), k=random.choice((10, 100, 200, 300, 1000, 6900))))
        prompt = system + own if number % 3 == 0 else own
        requests.append(
            GenerationRequest(
                queues.open(NAME), NAME, prompt, GenerationParams(random.choice((10, 500)))
            )
        )
        queue.put(requests[-1])
    answers: dict[GenerationRequest, list[int]] = {each: [] for each in requests}
    waiting, leaving = set(requests), requests[::7]
    while waiting:
        backend.step()
        if random.random() < 0.1 and leaving:
            left = leaving.pop()
            backend.cancel(left)
            waiting.discard(left)
        for each in [*waiting]:
            while (event := each.output.get(0.0)) is not None:
                answers[each] += event.token_ids
                if event.finish_reason is not None:
                    assert event.error is None
                    waiting.discard(each)
    while leaving:
        backend.cancel(leaving.pop())
    for number, each in enumerate(requests):
        expected = [*each.prompt_tokens[: each.params.max_tokens]]
        assert number % 7 == 0 or answers[each][: len(expected)] == expected
    backend.step()
    rows = backend.models[NAME].rows
    assert backend.snapshot.totals.pauses > 0
    assert (len(rows), rows.paused, rows.pages.counts.held) == (0, [], 0)
    rows.pages.forget_cached()
    assert rows.pages.counts.free == rows.pages.counts.total


def test_a_prompt_as_long_as_all_pages_is_answered_beside_others(ample: Ample) -> None:
    server = Server(kv_cache_memory=FEW_PAGES, max_seq_len=1024)
    longest = ("greedy", " ".join(WORDS * 60), 30)
    tokens = server.backend.served[NAME].tokenizer.encode(longest[1])
    context = server.backend.served[NAME].max_seq_len
    assert context == 16 * 32
    text = server.backend.served[NAME].tokenizer.decode(tokens[: context - 31])
    several = (*asked(4, 5), ("greedy", text, 20), *asked(5, 5))
    found = server.run(several)
    assert [each[-1].error for each in found] == [None] * len(several)
    server.check_that_all_pages_are_free()
