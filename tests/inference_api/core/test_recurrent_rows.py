"""Served models with recurrent layers say the same, whatever of their prompts is remembered."""

from pathlib import Path

import pytest

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.speculation.ngram import Match, NgramIndex
from tests.inference_api.core.stepped_server import CONTEXT, NAME, Server, Tokens, text
from tests.inference_api.engine.tiny_models import make_model


@pytest.fixture(scope="module", params=["lfm2-moe", "qwen3.5", "granite4"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hybrid")
    make_model(request.param, made, max_position_embeddings=CONTEXT)
    return made


@pytest.fixture(scope="module")
def forgetful(folder: Path) -> Server:
    return Server(folder, prefix_reuse=False)


def test_turns_of_a_chat_go_on_where_the_last_one_ended(folder: Path, forgetful: Server) -> None:
    server, prompt = Server(folder), text(0, 30)
    for turn in range(4):
        before = server.reused_tokens
        [answer] = server.answers([prompt])
        assert [answer] == forgetful.answers([prompt])
        assert (server.reused_tokens - before > 0) == (turn > 0)
        if turn:  # all but what was said last, and is new
            assert server.reused_tokens - before == len(prompt) - 21
        prompt += (*answer, *text(turn + 1, 20))


def test_from_the_third_on_prompts_share_a_beginning(folder: Path, forgetful: Server) -> None:
    server, beginning = Server(folder), text(1, 200)
    found = []
    for number in range(4):
        before, prompt = server.reused_tokens, beginning + text(10 + number, 30)
        assert server.answers([prompt]) == forgetful.answers([prompt])
        found.append(server.reused_tokens - before)
    assert found == [0, 0, 192, 192]  # six pages


def test_the_same_prompt_is_computed_from_its_last_border(folder: Path, forgetful: Server) -> None:
    server, prompt = Server(folder), text(2, 150)
    assert [*server.answers([prompt]), *server.answers([prompt])] == 2 * forgetful.answers([prompt])
    assert server.reused_tokens == 128


def test_rows_in_company_say_what_they_say_alone(folder: Path, forgetful: Server) -> None:
    server, beginning = Server(folder), text(3, 70)
    for turn in range(3):
        prompts = [beginning + text(20 * turn + each % 3, 15 * each) for each in range(1, 9)]
        alone = [forgetful.answers([prompt])[0] for prompt in prompts]
        assert server.answers(prompts) == alone
    assert server.reused_tokens > 500


def test_what_was_guessed_changes_no_text(
    folder: Path, forgetful: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[Tokens, Tokens] = {}

    def mostly_right(index: NgramIndex, max_tokens: int) -> Match:
        row = index.row
        begin, room = len(row.generated), row.token_limit - len(row.generated) - 1
        guesses = [*said[row.request.prompt_tokens][begin : begin + min(max_tokens, room)]]
        if begin % 3 and guesses:
            guesses[begin % len(guesses)] = 3
        return Match(guesses, 3 if guesses else 0)

    monkeypatch.setattr(NgramIndex, "match", mostly_right)
    server = Server(folder, speculation="ngram", speculation_tokens=5)
    prompts = [text(50 + each, 9 + 20 * each) for each in range(6)]
    for turn in range(3):
        said = {prompt: forgetful.answers([prompt])[0] for prompt in prompts}
        assert server.answers(prompts) == [*said.values()]
        prompts = [prompt + answer + text(60 + turn, 3) for prompt, answer in said.items()]
    totals = server.backend.snapshot.totals
    assert 0 < totals.accepted_tokens < totals.drafted_tokens
    assert totals.reused_tokens > 0


def test_rows_that_pause_say_what_they_would(
    folder: Path, forgetful: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_api.core.rows.SPARE_PAGES", 0)
    runner = forgetful.backend.models[NAME].runner
    assert isinstance(runner, KernelRunner)
    least_bytes = runner.footprint.within(None).cache_bytes  # too few for all rows
    server = Server(folder, kv_cache_memory=f"{1.05 * least_bytes / 2**20:.3f}MiB")
    prompts = [text(30 + each, 20 + 30 * each) for each in range(6)]
    alone = [forgetful.answers([prompt], 150)[0] for prompt in prompts]
    for _ in range(2):
        assert server.answers(prompts, 150) == alone
    rows = server.backend.models[NAME].rows
    assert server.backend.snapshot.totals.pauses > 0
    assert (len(rows), rows.paused, rows.pages.counts.held) == (0, [], 0)
    rows.pages.forget_cached()
    assert rows.pages.counts.free == rows.pages.counts.total


def test_a_smaller_model_may_guess(folder: Path, forgetful: Server, tmp_path: Path) -> None:
    make_model("llama", tmp_path, max_position_embeddings=CONTEXT)
    server = Server(folder, speculation="draft", draft_model=str(tmp_path))
    prompts = [text(70 + each, 9 + 20 * each) for each in range(3)]
    assert server.answers(prompts) == [forgetful.answers([prompt])[0] for prompt in prompts]
    assert server.backend.snapshot.totals.drafted_tokens > 0
