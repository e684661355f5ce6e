"""Heads that are trained on answers of the embedded model, and what is made of them."""

import itertools
import json
from pathlib import Path
from random import Random

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from inference_api.engine.local_runner import LocalRunner
from inference_api.loading.checkpoint import load_config
from inference_api.loading.heads import tokenizer_sha256
from inference_api.text.tokens import HuggingFaceTokenizer, load_tokenizer
from lab.models.random_model import Shape as ModelShape
from lab.models.random_model import make_random_model
from scripts.medusa.answers import (
    IGNORED,
    Collecting,
    Job,
    Positions,
    Shards,
    TrainingAnswer,
    answers_to,
    collect,
)
from scripts.medusa.base import load_runner, output_matrix
from scripts.medusa.cli import main
from scripts.medusa.export import export, read_into
from scripts.medusa.heads import Heads, Variant
from scripts.medusa.jobs import Jobs
from scripts.medusa.judging import (
    Judgement,
    answer_ranks,
    chain,
    judged,
    most_frequent_paths,
    prefixes,
    ranks,
    require_preferences,
    require_skill,
    tokens_per_step,
)
from scripts.medusa.making import named_labels
from scripts.medusa.prompts import (
    Prompt,
    chat,
    ordinary_messages,
    own_questions,
    read_prompts,
    turn_of_user,
)
from scripts.medusa.training import Trainer, TrainingPlan, head_loss

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "hearth-tiny"
ORDINARY_PROMPTS = ROOT / "lab" / "data" / "ordinary_prompts.txt"
QUESTIONS = [f"What is {a} plus {b}?" for a in range(2, 8) for b in range(2, 8)]
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return load_runner(str(MODEL), "cpu", MAX_TOKENS, num_threads=1)


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return load_tokenizer(MODEL, load_config(MODEL).eos_token_ids)


@pytest.fixture(scope="module")
def prompts(tokenizer: HuggingFaceTokenizer) -> list[Prompt]:
    return [tuple(chat(question, tokenizer)) for question in QUESTIONS]


@pytest.fixture(scope="module")
def jobs(prompts: list[Prompt]) -> Jobs:
    return Jobs.of(prompts, len(prompts), seed=3)


@pytest.fixture(scope="module")
def shards(runner: LocalRunner, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    how = Collecting(str(MODEL), "cpu", MAX_TOKENS, runner.eos_token_ids)
    return collect(how, jobs.all, tmp_path_factory.mktemp("answers"))


def test_paths_are_those_that_are_right_most_often() -> None:
    rng = Random(5)
    found = [[rng.choice((-1, 0, 0, 0, 1, 2)) for _ in range(3)] for _ in range(400)]
    every = [path for depth in (1, 2, 3) for path in itertools.product(range(3), repeat=depth)]

    def count(path: tuple[int, ...]) -> int:
        return sum(tuple(heads[: len(path)]) == path for heads in found)

    paths = most_frequent_paths(found, count=12)
    left_out = set(every) - set(paths)
    assert len(paths) == 12
    assert min(map(count, paths)) >= max(map(count, left_out))
    assert [count(path) for path in paths] == sorted(map(count, paths), reverse=True)
    for place, path in enumerate(paths):
        assert len(path) == 1 or path[:-1] in paths[:place]


def test_a_step_makes_what_is_certain_and_the_deepest_path_that_is_right() -> None:
    answer = [[0, 1, -1], [0, 0, 0], [1, -1, -1], [0, -1, -1], [-1, -1, -1]]
    # Chain of 2: positions 0 and 1 together, then 2 alone, then 3 and 4.
    assert tokens_per_step(chain(2), [answer]) == pytest.approx(5 / 3)
    assert tokens_per_step([], [answer]) == 1.0
    assert tokens_per_step([(0,), (0, 1), (1,)], [answer]) == pytest.approx(5 / 2)
    assert prefixes([2, -1, 0]) == [(2,)]


def test_a_rank_is_the_place_among_the_guesses() -> None:
    guesses = torch.tensor([[[7, 5, 3]], [[7, 5, 3]], [[1, 2, 3]]])
    assert ranks(guesses, torch.tensor([[3], [7], [9]])).tolist() == [[2], [0], [-1]]


def test_labels_are_what_the_model_says_next_while_it_follows_itself() -> None:
    positions = Positions(
        torch.zeros(6, 2),
        drawn_ids=torch.tensor([10, 11, 12, 13, 20, 21]),
        likeliest_ids=torch.tensor([10, 99, 12, 13, 20, 21]),
        lengths=torch.tensor([4, 2]),
    )
    assert positions.labels(2).tolist() == [
        [99, IGNORED],  # 11 came instead of 99, so that what follows it is no label
        [IGNORED, IGNORED],
        [13, IGNORED],
        [IGNORED, IGNORED],
        [21, IGNORED],
        [IGNORED, IGNORED],
    ]
    assert positions.continuations(2)[0].tolist() == [11, 12]


def test_positions_hold_what_the_output_head_takes(
    tokenizer: HuggingFaceTokenizer, shards: Shards, jobs: Jobs
) -> None:
    positions = shards.positions(jobs.held_out)
    logits = positions.hidden.float() @ output_matrix(MODEL).T
    says = logits.argmax(-1) == positions.drawn_ids
    assert (
        says.float().mean() > 0.97
    )  # int8 and float32 differ where two tokens are about as likely
    assert tokenizer.decode(positions.drawn_ids[-6:].tolist()).strip() != ""


def test_a_run_that_was_stopped_has_the_same_positions(
    runner: LocalRunner, jobs: Jobs, shards: Shards, tmp_path: Path
) -> None:
    stop_ids = runner.eos_token_ids
    stopped = Shards(tmp_path)
    answers = stopped.save(answers_to(jobs.all, runner, MAX_TOKENS, stop_ids))
    first = next(answers).job.number
    answers.close()
    assert stopped.numbers() == {first}
    resumed = collect(Collecting(str(MODEL), "cpu", MAX_TOKENS, stop_ids), jobs.all, tmp_path)
    for one, other in ((jobs.training, jobs.training), (jobs.held_out, jobs.held_out)):
        expected, got = shards.positions(one), resumed.positions(other)
        assert torch.equal(expected.hidden, got.hidden)
        assert torch.equal(expected.drawn_ids, got.drawn_ids)
        assert torch.equal(expected.likeliest_ids, got.likeliest_ids)


def test_no_prompt_is_in_two_splits(jobs: Jobs, prompts: list[Prompt]) -> None:
    splits = [
        {job.prompt for job in part} for part in (jobs.training, jobs.calibration, jobs.held_out)
    ]
    assert all(splits)
    assert sum(map(len, splits)) == len(set().union(*splits)) == len(prompts)
    assert {job.temperature for job in jobs.training} == {0.0, 0.7}
    assert {job.temperature for job in [*jobs.calibration, *jobs.held_out]} == {0.0}


def test_given_held_out_prompts_are_not_trained_on(prompts: list[Prompt]) -> None:
    jobs = Jobs.of(prompts, len(prompts), seed=3, held_out=prompts[:5])
    assert [job.prompt for job in jobs.held_out] == prompts[:5]
    assert not {job.prompt for job in [*jobs.training, *jobs.calibration]} & set(prompts[:5])
    assert len({job.number for job in jobs.all}) == len(jobs.all)


def test_too_few_prompts_are_refused(prompts: list[Prompt]) -> None:
    with pytest.raises(ValueError, match="7 different prompts are too few"):
        Jobs.of(prompts[:7], 100, seed=1)


class Stage:
    """Training of two heads in a folder, as far as it goes."""

    def __init__(
        self, shards: Shards, jobs: Jobs, work: Path, steps: int, variant: Variant = "shared"
    ) -> None:
        output = output_matrix(MODEL)
        positions = shards.positions(jobs.training)
        labels = named_labels(positions, torch.arange(len(output)), num_heads=2)
        self.heads = Heads(output, 2, variant)
        plan = TrainingPlan(work, steps, positions_per_step=64)
        self.trainer = Trainer(plan, self.heads, positions.hidden, labels)

    def run(self) -> Heads:
        self.trainer.run()
        return self.heads


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["shared", "full"])
def test_trained_heads_guess_better_than_the_model_s_own_head(
    shards: Shards, jobs: Jobs, tmp_path: Path, variant: Variant
) -> None:
    before = Stage(shards, jobs, tmp_path / "before", 0, variant).run()
    after = Stage(shards, jobs, tmp_path / "after", 150, variant).run()
    token_ids = torch.arange(len(output_matrix(MODEL)))
    positions = shards.positions(jobs.held_out)
    labels = named_labels(positions, token_ids, num_heads=2)

    def losses(heads: Heads) -> list[float]:
        hidden = positions.hidden.float()
        return [float(head_loss(heads, hidden, labels[:, k], k).detach()) for k in (0, 1)]

    def worth(heads: Heads) -> Judgement:
        ranks_of_answers = answer_ranks(heads, token_ids, shards.positions(jobs.calibration))
        paths = most_frequent_paths(torch.cat(ranks_of_answers).tolist())
        return judged(paths, answer_ranks(heads, token_ids, positions), positions)

    assert all(a < 0.5 * b for a, b in zip(losses(after), losses(before), strict=True))
    assert worth(after).tokens_by_chain[2] > worth(before).tokens_by_chain[2]
    require_skill(worth(after))
    with pytest.raises(ValueError, match="Head 0 is right at"):
        require_skill(worth(before))


def test_training_that_was_stopped_ends_the_same(
    shards: Shards, jobs: Jobs, tmp_path: Path
) -> None:
    whole = Stage(shards, jobs, tmp_path / "whole", steps=12).run()
    stopped = Stage(shards, jobs, tmp_path / "stopped", steps=12)
    calls = itertools.count()

    def stop_in_the_eighth_step(*_: object) -> None:
        if next(calls) == 15:
            raise KeyboardInterrupt

    stopped.heads.register_forward_pre_hook(stop_in_the_eighth_step)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert stopped.trainer.step == 7
    resumed = Stage(shards, jobs, tmp_path / "stopped", steps=12).run()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])


@pytest.mark.parametrize("variant", ["shared", "full"])
def test_files_have_the_published_names_and_shapes(tmp_path: Path, variant: Variant) -> None:
    heads = Heads(torch.randn(50, 16), 3, variant)
    export(heads, None, [(0,), (0, 0), (1,)], tmp_path, "owner/base", "0123")
    tensors = load_file(tmp_path / "medusa_lm_head.safetensors")
    blocks = {f"{k}.0.linear.weight": [16, 16] for k in range(3)}
    biases = {f"{k}.0.linear.bias": [16] for k in range(3)}
    outputs = {f"{k}.1.weight": [50, 16] for k in range(3)} if variant == "full" else {}
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        **blocks,
        **biases,
        **outputs,
    }
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "medusa_num_heads": 3,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "owner/base",
        "medusa_choices": [[0], [0, 0], [1]],
        "tokenizer_sha256": "0123",
    }


def test_tokens_that_heads_can_name_are_written_with_them(tmp_path: Path) -> None:
    token_ids = torch.tensor([3, 5, 40])
    export(Heads(torch.randn(3, 16), 1, "shared"), token_ids, [(0,)], tmp_path, "b", "0")
    stored = load_file(tmp_path / "medusa_lm_head.safetensors")["draft_token_ids"]
    assert stored.dtype == torch.int32
    assert stored.tolist() == token_ids.tolist()


def test_a_label_that_heads_cannot_name_counts_for_nothing() -> None:
    ids = torch.tensor([9, 4, 7, 9])
    positions = Positions(torch.zeros(4, 2), ids, ids, torch.tensor([4]))
    labels = named_labels(positions, torch.tensor([4, 9]), num_heads=1)
    assert labels[:, 0].tolist() == [0, IGNORED, 1, IGNORED]


def exit_status(arguments: list[str]) -> int:
    return CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code


@pytest.mark.slow
def test_every_stage_runs_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(QUESTIONS))
    output = tmp_path / "heads"
    options = ["--model", MODEL, "--prompts", file, "--work", tmp_path / "work"]
    options += ["--output", output, "--answers", "40", "--max-tokens", "24", "--heads", "2"]
    arguments = [str(option) for option in [*options, "--variant", "full", "--steps", "60"]]
    assert exit_status(arguments) == 0
    weights = (output / "medusa_lm_head.safetensors").read_bytes()
    config = json.loads((output / "config.json").read_text())
    assert config["tokenizer_sha256"] == tokenizer_sha256(MODEL)
    assert [0] in config["medusa_choices"]
    card = (output / "README.md").read_text()
    assert "$" not in card
    assert "| head | top 1 | top 2 | top 4 | top 8 |" in card
    assert exit_status(arguments) == 0
    assert (output / "medusa_lm_head.safetensors").read_bytes() == weights
    assert exit_status([*arguments, "--seed", "2"]) == 1  # other jobs than the folder's


def test_training_goes_on_from_heads_of_an_earlier_state(tmp_path: Path) -> None:
    earlier = Heads(torch.randn(8, 4), 2, "full")
    with torch.no_grad():
        earlier.bias.normal_()
    export(earlier, None, [], tmp_path, "model", "0")
    heads = Heads(torch.randn(8, 4), 2, "full")
    read_into(heads, tmp_path)
    for name, tensor in earlier.state_dict().items():
        torch.testing.assert_close(heads.state_dict()[name], tensor, rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match="another number, variant or size"):
        read_into(Heads(torch.randn(8, 4), 3, "full"), tmp_path)


@pytest.mark.slow
def test_random_weights_get_no_heads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "random"
    make_random_model(ModelShape(hidden=64, ffn=128, layers=2, heads=2, kv_heads=2), model)
    work = str(tmp_path / "work")
    assert exit_status(["--model", str(model), "--work", work, "--answers", "20"]) == 1
    assert "as random weights do" in caplog.text
    assert not (model / "medusa").exists()


def test_a_model_is_asked_how_much_it_prefers() -> None:
    answers = [
        TrainingAnswer(Job(0, (1,), 1.0), likeliest=[(5, logprob), (7, logprob)])
        for logprob in (-0.1, -1.9)
    ]
    require_preferences(answers, vocab_size=1000)
    with pytest.raises(ValueError, match=r"-1.0 on average, and of -1.1"):
        require_preferences(answers, vocab_size=3)


def test_what_a_chat_puts_before_and_after_a_message_is_found(
    tokenizer: HuggingFaceTokenizer,
) -> None:
    turn = turn_of_user(tokenizer)
    assert turn is not None
    before, end = turn
    assert tokenizer.decode(before, skip_special_tokens=False) == "<s><|user|>\n"
    assert tokenizer.special_token(end) == "</s>"


def test_own_questions_are_whole_and_of_usual_length(tokenizer: HuggingFaceTokenizer) -> None:
    question = tokenizer.encode("What is the capital of Kenya?", add_special_tokens=False)
    short = tokenizer.encode("Hi", add_special_tokens=False)
    answers = [[*question, 1], question, [*short, 1], [*question * 20, 1]]
    assert list(own_questions(answers, 1, tokenizer)) == ["What is the capital of Kenya?"]


def test_prompts_are_read_as_messages_chats_or_text(
    tokenizer: HuggingFaceTokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "Hello"}]
    lines = ["Hello", "", json.dumps({"messages": messages}), json.dumps({"prompt": "Hello"})]
    file.write_text("\n".join(lines))
    asked = tuple(chat("Hello", tokenizer))
    assert list(read_prompts(file, tokenizer)) == [
        asked,
        asked,
        tuple(tokenizer.encode("Hello")),
    ]


def test_a_line_that_is_no_prompt_is_named(tokenizer: HuggingFaceTokenizer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('Hello\n{"question": "Hello"}\n')
    with pytest.raises(ValueError, match="line 2 is no prompt"):
        list(read_prompts(file, tokenizer))


def test_forms_have_all_their_slots_filled_and_no_prompt_of_the_bench() -> None:
    messages = list(itertools.islice(ordinary_messages(7), 5000))
    assert not any("{" in message or "}" in message for message in messages)
    assert len(set(messages)) > 3000
    held_out = ORDINARY_PROMPTS.read_text().splitlines()
    assert len(set(held_out)) == 60
    assert not set(held_out) & set(messages)
