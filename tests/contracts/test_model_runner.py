"""What the decode loop may rely on, true of every ModelRunner.

A runner joins by a factory in `RUNNERS`: it gets a folder of its own and returns a loaded runner
of at least 8 rows of at least 64 tokens, and the size of its vocabulary (above 128).
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from inference_api.engine.runner import DecodeInput, ModelRunner
from inference_api.request import SamplingParams

NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=1234)
PENALISED = SamplingParams(temperature=1.3, frequency_penalty=0.5, repetition_penalty=1.2, seed=-5)

RunnerFactory = Callable[[Path], tuple[ModelRunner, int]]


def make_torch_runner(folder: Path) -> tuple[ModelRunner, int]:
    from inference_api.engine.torch_runner import TorchRunner
    from tests.inference_api.engine.tiny_models import VOCAB_SIZE, make_model

    make_model("llama", folder)
    runner = TorchRunner(folder, "cpu", "float32", 8, 64)
    runner.load()
    return runner, VOCAB_SIZE


def make_echo_runner(folder: Path) -> tuple[ModelRunner, int]:
    from inference_api._mock_inference_api_server import END_TOKEN, EchoRunner

    return EchoRunner(max_rows=8, max_seq_len=64), END_TOKEN + 1


RUNNERS: dict[str, RunnerFactory] = {"torch": make_torch_runner, "echo": make_echo_runner}

any_sampling = pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALISED])


@pytest.fixture(scope="module", params=RUNNERS)
def runner_and_vocab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelRunner, int]:
    return RUNNERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def runner(runner_and_vocab: tuple[ModelRunner, int]) -> ModelRunner:
    return runner_and_vocab[0]


class Request:
    """One prompt in one row, driven as the decode loop drives it."""

    def __init__(self, row: int, prompt: list[int], sampling: SamplingParams) -> None:
        self.row = row
        self.prompt = prompt
        self.sampling = sampling
        self.generated: list[int] = []

    def prefill(self, runner: ModelRunner, chunk_tokens: int = 1000) -> None:
        for start in range(0, len(self.prompt) - 1, chunk_tokens):
            end = min(start + chunk_tokens, len(self.prompt) - 1)
            runner.prefill(self.row, start, self.prompt[start:end])

    def next_input(self) -> DecodeInput:
        return DecodeInput(
            row=self.row,
            token_id=(self.prompt + self.generated)[-1],
            position=len(self.prompt) - 1 + len(self.generated),
            sampling=self.sampling,
            prompt_tokens=self.prompt,
            generated=self.generated,
        )


def step(runner: ModelRunner, requests: list[Request]) -> None:
    tokens = runner.decode([request.next_input() for request in requests])
    assert len(tokens) == len(requests)
    for request, token in zip(requests, tokens, strict=True):
        request.generated.append(token)


def generate(
    runner: ModelRunner,
    prompt: list[int],
    sampling: SamplingParams,
    row: int = 0,
    chunk_tokens: int = 1000,
) -> list[int]:
    """The answer to one prompt that has the runner to itself."""
    request = Request(row, prompt, sampling)
    request.prefill(runner, chunk_tokens)
    for _ in range(NUM_TOKENS):
        step(runner, [request])
    runner.release(row)
    return request.generated


def prompt_of(seed: int, num_tokens: int = 20) -> list[int]:
    return random.Random(seed).choices(range(32, 127), k=num_tokens)


def test_rows_and_context_are_known(runner: ModelRunner) -> None:
    assert runner.max_rows >= 8
    assert runner.max_seq_len >= 64


@any_sampling
def test_tokens_are_in_the_vocabulary(
    runner_and_vocab: tuple[ModelRunner, int], sampling: SamplingParams
) -> None:
    runner, vocab_size = runner_and_vocab
    tokens = generate(runner, prompt_of(1), sampling)
    assert all(isinstance(token, int) and 0 <= token < vocab_size for token in tokens)


@any_sampling
def test_same_request_gives_the_same_tokens_in_any_row(
    runner: ModelRunner, sampling: SamplingParams
) -> None:
    answers = [generate(runner, prompt_of(2), sampling, row) for row in (0, 3, 7, 0)]
    assert all(answer == answers[0] for answer in answers)


@any_sampling
def test_same_request_gives_the_same_tokens_beside_others(
    runner: ModelRunner, sampling: SamplingParams
) -> None:
    alone = generate(runner, prompt_of(3), sampling)
    others = [
        Request(row, prompt_of(row, 5 + row), [GREEDY, SEEDED, PENALISED][row % 3])
        for row in (0, 1, 2, 4, 5, 6, 7)
    ]
    request = Request(3, prompt_of(3), sampling)
    for each in [*others, request]:
        each.prefill(runner)
    for i in range(NUM_TOKENS):
        beside = others[i % 5 :]  # company comes and goes
        step(runner, [*beside[:2], request, *beside[2:]])
    assert request.generated == alone


@any_sampling
def test_released_row_serves_the_next_request_as_a_fresh_one(
    runner: ModelRunner, sampling: SamplingParams
) -> None:
    expected = generate(runner, prompt_of(4, 8), sampling, row=5)
    generate(runner, prompt_of(5, 40), SEEDED, row=5)
    assert generate(runner, prompt_of(4, 8), sampling, row=5) == expected


def test_prefill_of_one_row_leaves_the_others_alone(runner: ModelRunner) -> None:
    expected = generate(runner, prompt_of(6), GREEDY, row=2)
    request = Request(2, prompt_of(6), GREEDY)
    request.prefill(runner)
    for i in range(NUM_TOKENS):
        Request((2 + i % 5 + 1) % 8, prompt_of(i, 30), GREEDY).prefill(runner)
        step(runner, [request])
    assert request.generated == expected


@pytest.mark.parametrize("chunk_tokens", [1, 5, 18, 19])
def test_chunks_of_the_prompt_do_not_change_greedy_tokens(
    runner: ModelRunner, chunk_tokens: int
) -> None:
    expected = generate(runner, prompt_of(7), GREEDY)
    assert generate(runner, prompt_of(7), GREEDY, chunk_tokens=chunk_tokens) == expected


def test_prompt_of_one_token_needs_no_prefill(runner: ModelRunner) -> None:
    assert len(generate(runner, [65], GREEDY)) == NUM_TOKENS


def test_context_can_be_filled_to_its_last_position(runner: ModelRunner) -> None:
    prompt = prompt_of(8, runner.max_seq_len)
    request = Request(1, prompt, GREEDY)
    request.prefill(runner)
    step(runner, [request])
    runner.release(1)
    assert len(request.generated) == 1


def test_warm_up_may_be_followed_by_requests(runner: ModelRunner) -> None:
    expected = generate(runner, prompt_of(9), SEEDED)
    runner.warm_up()
    assert generate(runner, prompt_of(9), SEEDED) == expected
