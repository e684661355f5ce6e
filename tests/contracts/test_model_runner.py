"""What the decode loop may rely on, true of every ModelRunner.

A runner joins by a factory in `RUNNERS`: it returns a loaded runner of at least 8 rows of at least
64 tokens, and the size of its vocabulary (above 128).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from inference_api._mock_inference_api_server import END_TOKEN, EchoRunner
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import (
    Draw,
    Drawn,
    Hidden,
    ModelRunner,
    RowStep,
    own_pages,
    place_own_pages,
)

NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=1234)
PENALISED = SamplingParams(temperature=1.3, frequency_penalty=0.5, repetition_penalty=1.2, seed=-5)

OPTIONS = EngineOptions(device="cpu", dtype="float32", max_rows=8, max_seq_len=64)
WINDOWS, SHAPES = "gemma3", "gemma4-shared"  # the models of those runners
RunnerFactory = Callable[[], tuple[ModelRunner, int]]


def make_kernel_runner(
    options: EngineOptions = OPTIONS, model: str = "llama"
) -> tuple[ModelRunner, int]:
    from inference_api.engine.kernel_runner import KernelRunner
    from tests.inference_api.engine.tiny_models import VOCAB_SIZE, folder_of

    runner = KernelRunner(folder_of(model), options)
    runner.load()
    return runner, VOCAB_SIZE


def make_torch_runner(
    options: EngineOptions = OPTIONS, model: str = "llama"
) -> tuple[CudaRunner, int]:
    from tests.inference_api.engine.tiny_models import VOCAB_SIZE, folder_of

    runner = CudaRunner(folder_of(model), options)
    runner.load()
    if options.device == "cuda":
        runner.warm_up()  # captures the decode steps
    return runner, VOCAB_SIZE


def make_torch_runner_of_lengths() -> tuple[ModelRunner, int]:
    """With steps for contexts of two lengths."""
    runner, vocab_size = make_torch_runner()
    with torch.inference_mode():
        runner.decoder.prepare((16, 64))
    return runner, vocab_size


def make_echo_runner() -> tuple[ModelRunner, int]:
    return EchoRunner(max_rows=8, max_seq_len=64), END_TOKEN + 1


def make_pipeline_runner(model: str = "llama") -> tuple[ModelRunner, int]:
    from tests.inference_api.engine.tiny_models import VOCAB_SIZE, folder_of
    from tests.inference_api.pipeline.rings import make_pipeline

    runner = make_pipeline(folder_of(model), OPTIONS, (1, 1))
    runner.load()
    return runner, VOCAB_SIZE


RUNNERS: dict[str, RunnerFactory] = {
    "torch": make_torch_runner,
    "float32": make_kernel_runner,
    "bfloat16": partial(make_kernel_runner, options=replace(OPTIONS, dtype="bfloat16")),
    "torch, two lengths": make_torch_runner_of_lengths,
    "int8": partial(make_kernel_runner, options=replace(OPTIONS, quantization="int8")),
    "int4": partial(make_kernel_runner, options=replace(OPTIONS, quantization="int4")),
    "cache of int8": partial(make_kernel_runner, options=replace(OPTIONS, kv_cache_dtype="int8")),
    "cache of int4": partial(make_kernel_runner, options=replace(OPTIONS, kv_cache_dtype="int4")),
    "windows": partial(make_kernel_runner, model=WINDOWS),
    "layers of several shapes": partial(make_kernel_runner, model=SHAPES),
    "pipeline": make_pipeline_runner,
    "windows in a pipeline": partial(make_pipeline_runner, model=WINDOWS),
    "echo": make_echo_runner,
}
if torch.cuda.is_available():
    RUNNERS["cuda"] = partial(make_torch_runner, options=replace(OPTIONS, device="cuda"))

# Of hidden states to those of float32 weights: what rounding a model of random weights costs.
LEAST_SIMILARITY = {
    "int4": 0.5,
    "int8": 0.98,
    "bfloat16": 0.99,
    "cache of int8": 0.99,
    "cache of int4": 0.5,
}
any_sampling = pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALISED])


@pytest.fixture(scope="module", params=RUNNERS)
def runner_and_vocab(request: pytest.FixtureRequest) -> Iterator[tuple[ModelRunner, int]]:
    runner, vocab_size = RUNNERS[request.param]()
    yield runner, vocab_size
    runner.close()


@pytest.fixture
def runner(runner_and_vocab: tuple[ModelRunner, int]) -> ModelRunner:
    runner, _ = runner_and_vocab
    place_own_pages(runner)
    return runner


@pytest.fixture
def paged_runner(runner: ModelRunner) -> ModelRunner:
    """Only what has its pages where it is told."""
    if runner.layout.is_bound:
        pytest.skip("pages are bound to rows")
    return runner


class Request:
    """One prompt in one row, driven as the decode loop drives it."""

    def __init__(self, row: int, prompt: list[int], sampling: SamplingParams) -> None:
        self.row = row
        self.prompt = prompt
        self.sampling = sampling
        self.generated: list[int] = []

    def chunks(self, chunk_tokens: int = 1000, start: int = 0) -> list[RowStep]:
        """The prompt from `start` on, without its last token."""
        to_prefill = self.prompt[:-1]
        return [
            RowStep(self.row, at, to_prefill[at : at + chunk_tokens])
            for at in range(start, len(to_prefill), chunk_tokens)
        ]

    def prefill(self, runner: ModelRunner, chunk_tokens: int = 1000) -> None:
        for chunk in self.chunks(chunk_tokens):
            (result,) = runner.step([chunk])
            assert list(result.drawn) == []

    def next_step(self, draft: Sequence[int] = (), parents: Sequence[int] | None = None) -> RowStep:
        """The last token, which is not in the cache, and guesses behind it: a chain, or a tree
        where `parents` are those of all these tokens."""
        whole = self.prompt + self.generated
        branches: list[list[int]] = [[]]
        for index, guess in enumerate(draft, 1):
            parent = index - 1 if parents is None else parents[index]
            branches.append([*branches[parent], guess])
        before, prompt_ids = (self.sampling, self.prompt, self.generated), frozenset(self.prompt)
        draws = [Draw(*before, branch, prompt_ids=prompt_ids) for branch in branches]
        return RowStep(self.row, len(whole) - 1, [whole[-1], *draft], draws, parents)


def step(runner: ModelRunner, requests: list[Request]) -> None:
    results = runner.step([request.next_step() for request in requests])
    assert len(results) == len(requests)
    for request, result in zip(requests, results, strict=True):
        (drawn,) = result.drawn
        request.generated.append(drawn.token_id)


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
    return request.generated


def prompt_of(seed: int, num_tokens: int = 20) -> list[int]:
    return random.Random(seed).choices(range(32, 127), k=num_tokens)


def test_rows_and_context_are_known(runner: ModelRunner) -> None:
    assert runner.max_rows >= 8
    assert runner.max_seq_len >= 64


@any_sampling
def test_same_request_gives_the_same_tokens_of_the_vocabulary_in_any_row(
    runner: ModelRunner, runner_and_vocab: tuple[ModelRunner, int], sampling: SamplingParams
) -> None:
    _, vocab_size = runner_and_vocab
    first, *others = (generate(runner, prompt_of(2), sampling, row) for row in (0, 7, 0))
    assert all(isinstance(token, int) and 0 <= token < vocab_size for token in first)
    assert all(answer == first for answer in others)


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
def test_row_serves_the_next_request_as_a_fresh_one(
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


@pytest.mark.parametrize("chunk_tokens", [1, 5, 18])
def test_chunks_of_the_prompt_do_not_change_greedy_tokens(
    runner: ModelRunner, chunk_tokens: int
) -> None:
    expected = generate(runner, prompt_of(7), GREEDY)
    assert generate(runner, prompt_of(7), GREEDY, chunk_tokens=chunk_tokens) == expected


def test_last_chunk_and_first_draw_of_a_row_may_share_a_step(runner: ModelRunner) -> None:
    expected = generate(runner, prompt_of(10), GREEDY)
    request = Request(4, prompt_of(10), GREEDY)
    *_, result = runner.step([*request.chunks(), request.next_step()])
    request.generated.append(result.drawn[0].token_id)
    for _ in range(NUM_TOKENS - 1):
        step(runner, [request])
    assert request.generated == expected


def test_copied_page_serves_as_if_it_had_been_prefilled(runner: ModelRunner) -> None:
    source, prompt = prompt_of(11, 30), prompt_of(11, 30)[:16] + prompt_of(12, 9)
    expected = generate(runner, prompt, GREEDY)
    Request(2, source, GREEDY).prefill(runner, chunk_tokens=16)
    request = Request(6, prompt, GREEDY)
    for from_pages, to_pages in zip(own_pages(runner, 2), own_pages(runner, 6), strict=True):
        runner.copy_page(from_pages[0], to_pages[0])
    runner.step(request.chunks(start=16))
    Request(2, prompt_of(13, 30), GREEDY).prefill(runner)  # the source may change afterwards
    for _ in range(NUM_TOKENS):
        step(runner, [request])
    assert request.generated == expected


def test_shared_page_serves_as_if_it_had_been_prefilled(paged_runner: ModelRunner) -> None:
    runner, page_tokens = paged_runner, paged_runner.layout.page_tokens
    source = prompt_of(11, page_tokens + 9)
    prompt = source[:page_tokens] + prompt_of(12, 9)
    expected = [generate(runner, each, GREEDY) for each in (source, prompt)]
    requests = Request(2, source, GREEDY), Request(6, prompt, GREEDY)
    requests[0].prefill(runner)
    for group, pages in enumerate(own_pages(runner, 2)):
        runner.place(6, group, 0, pages[:1])
    runner.step(requests[1].chunks(start=page_tokens))
    for _ in range(NUM_TOKENS):
        step(runner, [*requests])
    assert [request.generated for request in requests] == expected


def test_step_without_pages_is_refused(
    paged_runner: ModelRunner, request: pytest.FixtureRequest
) -> None:
    if isinstance(paged_runner, EchoRunner):
        pytest.skip("the echo remembers nothing")
    runner, _ = RUNNERS[request.node.callspec.params["runner_and_vocab"]]()
    with pytest.raises(AssertionError):
        runner.step([RowStep(1, 0, [7])])
    for group in range(runner.layout.num_groups):
        runner.place(1, group, 0, [5 + group])
    page_tokens = runner.layout.page_tokens
    runner.step([RowStep(1, 0, [7] * page_tokens)])
    with pytest.raises(AssertionError):
        runner.step([RowStep(1, page_tokens, [7])])
    runner.close()


@any_sampling
def test_batch_invariant_runner_lets_chunks_and_steps_mix(
    runner: ModelRunner, sampling: SamplingParams
) -> None:
    if not runner.is_batch_invariant:
        return
    expected = [generate(runner, prompt_of(i, 20 + i), sampling) for i in (14, 15)]
    running, arriving = (Request(i, prompt_of(i + 14, 34 + i), sampling) for i in (0, 1))
    running.prefill(runner)
    for chunk in arriving.chunks(chunk_tokens=7):
        _, result = runner.step([chunk, running.next_step()])
        running.generated.append(result.drawn[0].token_id)
    while len(arriving.generated) < NUM_TOKENS:
        step(runner, [running, arriving])
    assert [running.generated[:NUM_TOKENS], arriving.generated] == expected


def test_scoring_a_prompt_equals_drawing_it_token_by_token(runner: ModelRunner) -> None:
    """Tokens whose next one is known, of which each sees the ones before it."""
    sampling = SamplingParams(temperature=0.0, num_logprobs=3)
    prompt = prompt_of(16)
    answer = generate(runner, prompt, sampling)
    whole = prompt + answer
    draws = [Draw(sampling, whole, (), known_id=token) for token in whole[1:]]
    (result,) = runner.step([RowStep(3, 0, whole[:-1], draws)])
    assert [each.token_id for each in result.drawn] == whole[1:]
    request = Request(3, prompt, sampling)
    for expected in result.drawn[len(prompt) - 1 :]:
        ((each,), _) = runner.step([request.next_step()])[0]
        request.generated.append(each.token_id)
        assert_same_likelihoods(each, expected)
    assert request.generated == answer


def assert_same_likelihoods(one: Drawn, other: Drawn) -> None:
    assert one.logprobs is not None
    assert other.logprobs is not None
    assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-4)
    assert [token for token, _ in one.logprobs.top] == [t for t, _ in other.logprobs.top]


@pytest.mark.parametrize(
    ("num_right", "sampling"), [(0, SEEDED), (1, GREEDY), (3, PENALISED), (4, SEEDED)]
)
def test_verified_chain_says_what_single_steps_say(
    runner: ModelRunner, num_right: int, sampling: SamplingParams
) -> None:
    """Drafts of which the first tokens are right, verified beside others, kept and gone on from."""
    sampling = replace(sampling, num_logprobs=2)
    request, single = (Request(row, prompt_of(17), sampling) for row in (2, 2))
    alone = [drawn_alone(runner, single) for _ in range(NUM_TOKENS)]
    answer = [each.token_id for each in alone]
    others = [Request(row, prompt_of(row, 9 + row), SEEDED) for row in (0, 1, 5)]
    for each in [*others, request]:
        each.prefill(runner)
    while len(request.generated) < NUM_TOKENS:
        done = len(request.generated)
        draft = answer[done : done + num_right]
        draft += [(token + 1) % 100 for token in answer[done + num_right : done + 4]]
        row_step = request.next_step(draft)
        *_, result = runner.step([*(other.next_step() for other in others), row_step])
        num_kept = min(num_right + 1, len(result.drawn))
        for drawn, expected in zip(result.drawn[:num_kept], alone[done:], strict=False):
            assert drawn.token_id == expected.token_id
            assert_same_likelihoods(drawn, expected)
        runner.keep(row_step, range(num_kept))
        request.generated += [each.token_id for each in result.drawn[:num_kept]]
    assert request.generated[:NUM_TOKENS] == answer


def drawn_alone(runner: ModelRunner, request: Request) -> Drawn:
    if not request.generated:
        request.prefill(runner)
    (result,) = runner.step([request.next_step()])
    (drawn,) = result.drawn
    request.generated.append(drawn.token_id)
    return drawn


def states(runner: ModelRunner, rows: Sequence[RowStep]) -> list[Hidden]:
    results = runner.step([replace(each, wants_hidden=True) for each in rows])
    assert all(result.hidden is not None for result in results)
    return [result.hidden for result in results if result.hidden is not None]


@pytest.fixture
def exact_runner(runner: ModelRunner, request: pytest.FixtureRequest) -> ModelRunner:
    """Only what has hidden states, to look for bits in."""
    name = request.node.callspec.params["runner_and_vocab"]
    if name == "echo":
        pytest.skip("the echo has no hidden states")
    return runner


def test_rejected_tail_leaves_no_bit_behind(exact_runner: ModelRunner) -> None:
    runner = exact_runner
    prompt, wrong = prompt_of(18), prompt_of(19, 5)
    text = prompt + prompt_of(20, 4)
    hidden = []
    for draft in ([], wrong):
        each = Request(4, prompt, GREEDY)
        each.prefill(runner)
        row_step = each.next_step(draft)
        runner.step([row_step])
        runner.keep(row_step, [0])
        each.generated = text[len(prompt) :]
        hidden += states(runner, [each_token(4, text, at) for at in range(len(prompt), len(text))])
    half = len(hidden) // 2
    for one, other in zip(hidden[:half], hidden[half:], strict=True):
        assert np.array_equal(one, other)


# Root, a first child that is right in one tree and wrong in the next, and branches of both.
PARENTS = (-1, 0, 0, 0, 2, 1, 2, 4, 4, 6, 7)


@pytest.mark.parametrize(("start", "sampling"), [(7, GREEDY), (31, SEEDED), (37, PENALISED)])
def test_every_branch_of_a_tree_draws_what_it_would_alone(
    runner: ModelRunner, start: int, sampling: SamplingParams
) -> None:
    """Beside another tree and a plain row, across the places where blocks of keys begin."""
    sampling = replace(sampling, num_logprobs=2)
    requests = [Request(row, prompt_of(row, start + 1), sampling) for row in (1, 4)]
    guesses = [prompt_of(22 + row, len(PARENTS) - 1) for row in (1, 4)]
    plain = Request(6, prompt_of(6), SEEDED)
    for each in [*requests, plain]:
        each.prefill(runner)
    steps = [r.next_step(g, PARENTS) for r, g in zip(requests, guesses, strict=True)]
    results = runner.step([steps[0], plain.next_step(), steps[1]])
    for request, row_step, result in zip(requests, steps, results[::2], strict=True):
        for node, drawn in enumerate(result.drawn):
            alone = Request(2, request.prompt, sampling)
            alone.generated = [row_step.token_ids[at] for at in path_to(node)[1:]]
            alone.prefill(runner)
            for at, position in enumerate(range(start, start + len(path_to(node)) - 1)):
                runner.step([RowStep(2, position, [row_step.token_ids[path_to(node)[at]]])])
            (expected,) = runner.step([alone.next_step()])
            assert drawn.token_id == expected.drawn[0].token_id
            assert_same_likelihoods(drawn, expected.drawn[0])


def path_to(node: int) -> list[int]:
    path = [node]
    while PARENTS[path[-1]] >= 0:
        path.append(PARENTS[path[-1]])
    return path[::-1]


@pytest.mark.parametrize(("start", "leaf"), [(12, 1), (29, 3), (12, 5), (29, 8), (12, 9), (29, 10)])
def test_kept_branch_is_bit_for_bit_what_had_never_been_a_tree(
    exact_runner: ModelRunner, start: int, leaf: int
) -> None:
    runner, prompt, guesses = exact_runner, prompt_of(23, start + 1), prompt_of(24, 10)
    path, more = path_to(leaf), prompt_of(25, 4)
    text = [*prompt, *([prompt[-1], *guesses][node] for node in path[1:]), *more]
    end = start + len(path)
    tree, chain = (Request(row, prompt, GREEDY) for row in (5, 3))
    tree.prefill(runner)
    row_step = tree.next_step(guesses, PARENTS)
    (of_tree,) = states(runner, [row_step])
    runner.keep(row_step, path)
    chain.prefill(runner)
    of_path = states(runner, [each_token(3, text, at) for at in range(start, end)])
    after = states(runner, [each_token(row, text, end) for row in (5, 3)])
    after += states(runner, [RowStep(row, end + 1, text[end + 1 :]) for row in (5, 3)])
    pairs = [(of_tree[path], np.concatenate(of_path)), after[:2], after[2:]]
    for one, other in pairs:
        assert np.array_equal(one, other)


def each_token(row: int, text: Sequence[int], at: int) -> RowStep:
    return RowStep(row, at, text[at : at + 1], (Draw(GREEDY, text, ()),))


@pytest.mark.parametrize("seed", range(2))
def test_any_placement_of_pages_gives_the_same_bits(exact_runner: ModelRunner, seed: int) -> None:
    """Pages in no order, some of them moved before each step."""
    runner, layout = exact_runner, exact_runner.layout
    if layout.is_bound:
        pytest.skip("pages are bound to rows")
    expected = states_of_a_text(runner, lambda: None)
    shuffled = random.Random(seed)
    free = shuffled.sample(range(layout.num_pages), layout.num_pages)
    count = layout.num_pages // (runner.max_rows * layout.num_groups)
    tables = {}
    for row, group in product(ROWS_OF_TEXT, range(layout.num_groups)):
        tables[row, group] = [free.pop() for _ in range(count)]
        runner.place(row, group, 0, tables[row, group])

    def move_a_page() -> None:
        (row, group), table = shuffled.choice([*tables.items()])
        index = shuffled.randrange(count)
        old, new = table[index], free.pop(shuffled.randrange(len(free)))
        runner.copy_page(old, new)
        runner.place(row, group, index, [new])
        table[index] = new
        free.append(old)

    for one, other in zip(states_of_a_text(runner, move_a_page), expected, strict=True):
        assert np.array_equal(one, other)


ROWS_OF_TEXT = (4, 5)


def states_of_a_text(runner: ModelRunner, before_step: Callable[[], None]) -> list[Hidden]:
    """Of two rows, whose prompts are cut and whose trees reach across the border of a page."""
    texts = {row: prompt_of(26 + row, runner.max_seq_len) for row in ROWS_OF_TEXT}
    hidden = []
    for start, end in ((0, 7), (7, 29)):
        before_step()
        hidden += states(runner, [RowStep(row, start, texts[row][start:end]) for row in texts])
    trees = [RowStep(row, 29, texts[row][29:40], (), PARENTS) for row in texts]
    before_step()
    hidden += states(runner, trees)
    for tree in trees:
        runner.keep(tree, path_to(10))
    for at in range(29 + len(path_to(10)), 40):
        before_step()
        hidden += states(runner, [each_token(row, texts[row], at) for row in texts])
    before_step()
    return hidden + states(runner, [RowStep(row, 40, texts[row][40:]) for row in texts])


def test_hidden_states_are_those_of_torch(
    exact_runner: ModelRunner, request: pytest.FixtureRequest
) -> None:
    """Of every token where asked, drawn or not, and of no others."""
    text = prompt_of(21, 30)
    asked = RowStep(1, 0, text, [Draw(GREEDY, text, ())] * 3, wants_hidden=True)
    results = exact_runner.step([RowStep(0, 0, text), asked, each_token(2, text, 0)])
    assert [result.hidden is None for result in results] == [True, False, True]
    hidden = results[1].hidden
    assert hidden is not None
    name = request.node.callspec.params["runner_and_vocab"]
    if "shapes" in name:
        pytest.skip("torch has no such layers")
    model = WINDOWS if "windows" in name else "llama"
    expected = states(make_torch_runner(model=model)[0], [asked])[0]
    assert hidden.shape == expected.shape
    assert hidden.dtype == np.float32
    lengths = np.linalg.norm(hidden, axis=1) * np.linalg.norm(expected, axis=1)
    similarities = (hidden * expected).sum(axis=1) / lengths
    assert similarities.min() > LEAST_SIMILARITY.get(name, 1 - 1e-6)


def test_prompt_of_one_token_needs_no_prefill(runner: ModelRunner) -> None:
    assert len(generate(runner, [65], GREEDY)) == NUM_TOKENS


def test_context_can_be_filled_to_its_last_position(runner: ModelRunner) -> None:
    prompt = prompt_of(8, runner.max_seq_len)
    request = Request(1, prompt, GREEDY)
    request.prefill(runner)
    step(runner, [request])
    assert len(request.generated) == 1


def test_warm_up_may_be_followed_by_requests(runner: ModelRunner) -> None:
    expected = generate(runner, prompt_of(9), SEEDED)
    runner.warm_up()
    assert generate(runner, prompt_of(9), SEEDED) == expected
