"""Several tokens a step change nothing that a client can see but the time: the echo, drafted."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from inference_api import model_loading
from inference_api._mock_inference_api_server import (
    END_TOKEN,
    ByteTokenizer,
    EchoRunner,
    create_test_server,
)
from inference_api.core.drafts import Outcome, accepted_branch
from inference_api.core.plan import StepPlanner
from inference_api.core.rows import Draft, UserRow
from inference_api.model_loading import loaded_alone
from inference_api.request import (
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SessionId,
)
from inference_api.runner import Draw, Drawn, RowStep
from inference_api.settings import Settings
from inference_api.speculation.scheduler import DraftScheduler
from lab.kit.servers import eventually
from tests.inference_api.core.row_tables import make_rows
from tests.inference_api.core.test_decode_backend import Loop, drained
from tests.inference_api.in_process import started

WRONG = ord("~")
TEXT = "Once upon a time there was a fox, and no stop in sight."


class EchoDrafts:
    """Two tokens that the echo will say, then one that it will not; as a tree, or a chain."""

    name = "echo"
    wants_hidden = False

    def __init__(self, is_tree: bool = False) -> None:
        self._is_tree = is_tree

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """It knows."""

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        drafts = {}
        for row in rows:
            at = len(row.generated) + 1
            right = (*row.request.prompt_tokens, END_TOKEN)[at - 1 : at + 1]
            if self._is_tree:  # the right ones are the second children
                tokens, parents = (WRONG, *right, WRONG), (-1, -1, 1, 0)[: len(right) + 2]
            else:
                tokens, parents = (*right, WRONG), None
            drafts[row.index] = Draft(tokens, parents, [0.5] * len(tokens))
        return drafts


@pytest.fixture(scope="module", params=["single", "chain", "tree"])
def client(request: pytest.FixtureRequest) -> Iterator[FlaskClient]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "single":
            drafts = EchoDrafts(is_tree=request.param == "tree")
            scheduler = DraftScheduler([drafts], 8, max_rows=32, tries_all=True)
            patch.setattr(model_loading, "drafting_of", lambda *_: scheduler)
        app = create_test_server(Settings(mock_tokens_per_second=1e6, max_seq_len=200))
        with started(app) as client:
            patch.undo()  # for other tests
            yield client


def complete(client: FlaskClient, **body: object) -> Any:
    model, *_ = client.get("/v1/models").get_json()["data"]
    response = client.post("/v1/completions", json={"model": model["id"], **body})
    return response.get_json()


def likelihoods(choice: Mapping[str, Any]) -> list[str]:
    return list(choice["logprobs"]["tokens"])


def test_whole_text_is_echoed(client: FlaskClient) -> None:
    assert client.post("/inference", json={"text": TEXT}).text == TEXT


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 7])
def test_max_tokens_cuts_in_the_middle_of_a_step(client: FlaskClient, max_tokens: int) -> None:
    answer = complete(client, prompt=TEXT, max_tokens=max_tokens, logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == TEXT[:max_tokens]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert likelihoods(choice) == list(TEXT[:max_tokens])


@pytest.mark.parametrize("stop", ["n", "ce", "ce u", "time", "fox"])
def test_stop_string_cuts_in_the_middle_of_a_step(client: FlaskClient, stop: str) -> None:
    """What came behind it in the same step is neither shown nor counted."""
    answer = complete(client, prompt=TEXT, stop=stop, logprobs=0, max_tokens=100)
    (choice,) = answer["choices"]
    before = TEXT.index(stop)
    assert choice["text"] == TEXT[:before]
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == before + len(stop)
    assert likelihoods(choice) == list(TEXT[:before])


def test_end_token_cuts_in_the_middle_of_a_step(client: FlaskClient) -> None:
    for length in range(1, 8):
        answer = complete(client, prompt=TEXT[:length], max_tokens=50)
        assert answer["choices"][0]["text"] == TEXT[:length]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == length


def test_prompt_and_answer_are_scored_token_by_token(client: FlaskClient) -> None:
    answer = complete(client, prompt=TEXT[:9], max_tokens=5, logprobs=1, echo=True)
    (choice,) = answer["choices"]
    assert choice["text"] == TEXT[:9] + TEXT[:5]
    assert likelihoods(choice) == list(TEXT[:9] + TEXT[:5])


def test_streamed_chat_has_every_token_with_its_likelihood(client: FlaskClient) -> None:
    model, *_ = client.get("/v1/models").get_json()["data"]
    body = {
        "model": model["id"],
        "messages": [{"role": "user", "content": "say it"}],
        "stream": True,
        "logprobs": True,
        "max_tokens": 8,
        "stream_options": {"include_usage": True},
    }
    lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line[6:7] == "{"]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    scored = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert len(text) == 8
    assert "".join(entry["token"] for entry in scored) == text
    assert events[-1]["usage"]["completion_tokens"] == 8


def test_metrics_count_tokens_and_the_gaps_between_them(client: FlaskClient) -> None:
    def counts() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {
            line.split("{")[0]: float(line.split()[-1])
            for line in lines
            if line.startswith(("inference_generated_tokens_total", "inference_inter_token"))
            and "_bucket" not in line
        }

    before = counts()
    complete(client, prompt=TEXT, max_tokens=20)
    after = counts()
    gaps, tokens = "inference_inter_token_latency_seconds_count", "inference_generated_tokens_total"
    assert after[gaps] - before.get(gaps, 0) == 19
    eventually(lambda: counts()[tokens] - before[tokens] == 20)


def drafting_loop(rows: int = 2, *, is_tree: bool = False) -> Loop:
    loop = Loop(rows, context=64, chunk=100)
    draft(loop, EchoDrafts(is_tree))
    return loop


def draft(loop: Loop, drafts: EchoDrafts) -> None:
    [model] = loop.backend.models.values()
    planner = StepPlanner(model.rows, model.runner, loop.backend.settings, drafts)
    loop.backend.take([replace(model, planner=planner)])


def test_row_that_decodes_gets_three_tokens_a_step() -> None:
    loop = drafting_loop()
    queue = loop.submit("abcdefgh")
    loop.step()  # with its prompt
    texts = []
    for _ in range(3):
        loop.step()
        texts.append(drained(queue))
    assert texts == [("abcd", None), ("efg", None), ("h", FinishReason.STOP)]
    assert loop.backend.snapshot.totals.generated_tokens == 8


def test_cancelled_row_is_freed_whatever_it_was_drafting() -> None:
    loop = drafting_loop(rows=1)
    running, waiting = loop.submit("x" * 50), loop.submit("yz")
    loop.step(3)
    loop.cancel(running)
    loop.step(3)
    assert drained(waiting) == ("yz", FinishReason.STOP)


def test_prompts_go_before_drafts() -> None:
    """A prompt that takes all the room leaves none; the drafts are there again after it."""
    loop = Loop(rows=32, context=200, chunk=100)
    backend = loop.backend
    draft(loop, EchoDrafts())
    for _ in range(2):
        loop.submit("x" * 20)
    loop.step()
    loop.submit("y" * 99)
    before = backend.snapshot.totals
    loop.step()
    beside = backend.snapshot.totals
    assert beside.prefilled_tokens - before.prefilled_tokens == round(1.4 * 32) - 2
    assert beside.drafted_tokens == before.drafted_tokens
    loop.step(3)
    assert backend.snapshot.totals.drafted_tokens > beside.drafted_tokens


def test_states_to_guess_from_are_not_asked_for_while_prompts_wait() -> None:
    loop = Loop(rows=32, context=200, chunk=100)
    drafts = EchoDrafts()
    drafts.wants_hidden = True
    (model,) = loop.backend.models.values()
    planner = StepPlanner(model.rows, model.runner, loop.backend.settings, drafts)
    loop.submit("x" * 20)
    loop.step()
    loop.submit("y" * 99)
    loop.backend._pick_prompts()
    asked: list[list[bool]] = []
    while not asked or model.rows.prefilling():
        asked.append([step.wants_hidden for _, step in planner.plan().decoding])
    assert asked[:2] == [[False], [False]]
    assert asked[2] == [True] * len(asked[2])


def test_drafted_and_accepted_tokens_are_counted_up_to_the_end_of_the_answer() -> None:
    loop = drafting_loop()
    loop.submit("abcdefgh", max_tokens=5)
    loop.step(4)
    totals = loop.backend.snapshot.totals
    assert (totals.drafts, totals.drafted_tokens, totals.accepted_tokens) == (1, 3, 2)
    (model,) = loop.backend.snapshot.models.values()
    assert model.depths.acceptance_by_depth == [1.0, 1.0, 0.0]


def test_depth_of_a_tree_is_what_was_drafted() -> None:
    loop = drafting_loop(is_tree=True)
    loop.submit("abcdefgh")
    loop.step(2)
    totals = loop.backend.snapshot.totals
    assert (totals.drafts, totals.drafted_tokens, totals.accepted_tokens) == (1, 2, 2)


@pytest.mark.parametrize("mode", ["off", "ngram", "auto"])
def test_setting_says_whether_there_are_drafts(mode: str) -> None:
    settings = Settings.model_validate({"speculation": mode})
    model = loaded_alone("m", EchoRunner(2, 64), ByteTokenizer(), settings)
    assert (model.planner._drafts is not None) == (mode != "off")
    assert model.served.draft_sources == (() if mode == "off" else ("ngram",))


def row_of(prompt: Sequence[int], max_tokens: int = 50, context: int = 64) -> UserRow:
    params = GenerationParams(max_tokens)
    request = GenerationRequest(OutputQueue(SessionId("s"), "m"), "m", tuple(prompt), params)
    return make_rows().assign(request, context, 0.0)


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, 0), (2, 1), (3, 2), (9, 3)])
def test_draft_is_cut_to_what_the_row_may_still_say(max_tokens: int, expected: int) -> None:
    row = row_of([7], max_tokens)
    step = row.take_step(row.fitting(Draft((1, 2, 3))))
    assert len(step.token_ids) - 1 == len(step.draws) - 1 == expected


def test_draft_never_reaches_beyond_the_context() -> None:
    row = row_of([7] * 60, context=62)
    step = row.take_step(row.fitting(Draft((1, 2, 3))))
    assert len(step.token_ids) == 2


def test_draws_of_a_tree_know_the_tokens_of_their_own_branch() -> None:
    step = row_of([7]).take_step(Draft((1, 2, 3, 4), (-1, -1, 1, 0)))
    assert step.parents == (-1, 0, 0, 2, 1)
    assert step.positions == [0, 1, 1, 2, 2]
    assert [draw.branch for draw in step.draws] == [(), (1,), (2,), (2, 3), (1, 4)]


def test_what_was_kept_is_in_the_cache_and_what_was_not_is_written_again() -> None:
    row = row_of([7, 8])
    row.take_prompt(1)
    step = row.take_step(Draft((1, 2, 9)))
    tokens, drawn = accepted_branch(step, [Drawn(token) for token in (1, 2, 3, 4)])
    assert (tokens, drawn) == ([0, 1, 2], [Drawn(1), Drawn(2), Drawn(3)])
    assert row.accept(drawn, batch_size=1).token_ids == (1, 2, 3)
    assert (row.take_step().start, row.num_cached) == (4, 5)


@given(st.data())
def test_accepted_branch_is_the_one_that_single_steps_would_go(data: st.DataObject) -> None:
    """A random tree, of tokens that differ among siblings, against a walk from its root."""
    size = data.draw(st.integers(1, 12))
    parents = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, size))]
    tokens = [100, *range(1, size)]
    children = [[i for i in range(1, size) if parents[i] == at] for at in range(size)]
    drawn = [data.draw(st.sampled_from([0, *(tokens[c] for c in own)])) for own in children]
    draw = Draw(row_of([1]).request.params.sampling, (), ())
    found = accepted_branch(RowStep(0, 5, tokens, [draw] * size, parents), [*map(Drawn, drawn)])
    path, texts = [0], [drawn[0]]
    while texts[-1] in [tokens[child] for child in children[path[-1]]]:
        path.append(tokens.index(texts[-1]))
        texts.append(drawn[path[-1]])
    assert found == (path, [*map(Drawn, texts)])
