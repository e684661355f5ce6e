"""Runs all stages, from a model to its heads.

A stage is not repeated if an earlier run with the same work folder has finished it.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from inference_api.loading.checkpoint import load_config, locate
from inference_api.loading.drafting import FOLDER
from inference_api.loading.heads import tokenizer_sha256
from inference_api.text.tokens import HuggingFaceTokenizer, load_tokenizer

from . import prompts
from .answers import IGNORED, Collecting, Job, Positions, Shards, answers_to, collect
from .base import load_runner, most_prompt_tokens, output_matrix, quantization_on
from .card import write_card
from .export import export, read_into
from .heads import Heads
from .jobs import Jobs
from .judging import answer_ranks, judged, most_frequent_paths, require_preferences, require_skill
from .training import Trainer, TrainingPlan

logger = logging.getLogger(__name__)

PROBES, PROBE_TOKENS, PROBE_TEMPERATURE = 32, 16, 1.0
QUESTION_TEMPERATURE = 1.0
QUESTIONS_PER_ANSWER = 0.2  # questions requested from the model; most of them are usable


Options = SimpleNamespace  # `cli` lists them


@dataclass(frozen=True, slots=True)
class Splits:
    training: Positions
    calibration: Positions
    held_out: Positions


def make_heads(options: Options, command: str) -> None:
    """Trains heads and writes them with their card. Raises StartupError for a model that cannot be
    served, and ValueError for prompts that cannot be used, or a model or heads of no use."""
    path = locate(options.model)
    if options.output is None and not path.is_dir():
        raise ValueError(f"{path} is no folder that heads could be in; name one by --output.")
    output = options.output or path / FOLDER
    work = options.work or Path("var/medusa") / path.stem
    work.mkdir(parents=True, exist_ok=True)
    splits = _answered(options, path, work)
    matrix = output_matrix(path)
    token_ids = _draft_tokens(options, splits.training, len(matrix))
    heads = Heads(matrix[token_ids], options.heads, options.variant)
    if options.start_from is not None:
        read_into(heads, options.start_from)
    name = f"{options.variant}-{options.heads}-{len(token_ids)}"
    plan = TrainingPlan(
        work / name, options.steps, options.minutes, seed=options.seed, device=options.device
    )
    torch.set_num_threads(options.processes)
    labels = named_labels(splits.training, token_ids, options.heads)
    trainer = Trainer(plan, heads, splits.training.hidden, labels)
    trainer.run()
    calibration_ranks = answer_ranks(heads, token_ids, splits.calibration)
    paths = most_frequent_paths(torch.cat(calibration_ranks).tolist())
    held_out_ranks = answer_ranks(heads, token_ids, splits.held_out)
    judgement = judged(paths, held_out_ranks, splits.held_out)
    require_skill(judgement)
    base = options.name or options.model
    named = None if len(token_ids) == len(matrix) else token_ids
    export(heads, named, paths, output, base, tokenizer_sha256(path))
    provenance = _provenance(options, base, command, splits, trainer)
    write_card(output, provenance, heads, len(paths), trainer, judgement)
    logger.info("%s: %s tokens a step by trees", output, judgement.tokens_by_nodes)


def named_labels(positions: Positions, token_ids: Tensor, num_heads: int) -> Tensor:
    """Returns the labels as indices in `token_ids`; IGNORED for other tokens."""
    labels = positions.labels(num_heads)
    places = torch.searchsorted(token_ids, labels).clamp(max=len(token_ids) - 1)
    is_named = token_ids[places] == labels
    return torch.where(is_named, places, IGNORED)


def _answered(options: Options, path: Path, work: Path) -> Splits:
    stop_ids = load_config(path).eos_token_ids
    tokenizer = load_tokenizer(path, stop_ids)
    how = Collecting(options.model, options.device, options.max_tokens, stop_ids, options.processes)
    jobs = _jobs(options, work, tokenizer, how)
    folder = work / "answers"
    if options.no_more_answers:
        shards = Shards(folder)
        jobs = jobs.only(shards.numbers())
    else:
        shards = collect(how, jobs.all, folder)
    return Splits(*map(shards.positions, (jobs.training, jobs.calibration, jobs.held_out)))


def _jobs(options: Options, work: Path, tokenizer: HuggingFaceTokenizer, how: Collecting) -> Jobs:
    names = ("model", "prompts", "held_out", "answers", "max_tokens", "seed")
    origin: dict[str, Any] = {name: str(getattr(options, name)) for name in names}
    file = work / "jobs.json"
    if file.exists():
        return Jobs.load(file, origin)
    held_out: list[prompts.Prompt] = []
    if options.held_out is not None:
        held_out = list(
            prompts.distinct(_fitting(prompts.read_prompts(options.held_out, tokenizer), how))
        )
    probe(how, tokenizer, options.seed)
    candidates = _fitting(_prompts(options, work, tokenizer, how), how)
    jobs = Jobs.of(candidates, options.answers, options.seed, held_out)
    jobs.save(file, origin)
    return jobs


def probe(how: Collecting, tokenizer: HuggingFaceTokenizer, seed: int) -> None:
    """Raises ValueError if the model answers at random, as untrained weights do."""
    runner = load_runner(how.model, how.device, PROBE_TOKENS)
    messages = islice(prompts.ordinary_messages(seed), PROBES)
    jobs = [
        Job(number, tuple(prompts.chat(message, tokenizer)), PROBE_TEMPERATURE)
        for number, message in enumerate(messages)
    ]
    answers = list(answers_to(jobs, runner, PROBE_TOKENS, how.stop_ids))
    require_preferences(answers, runner.vocab_size)


def _prompts(
    options: Options, work: Path, tokenizer: HuggingFaceTokenizer, how: Collecting
) -> Iterator[prompts.Prompt]:
    if options.prompts is not None:
        yield from prompts.read_prompts(options.prompts, tokenizer)
        return
    questions: list[str] = []
    if (turn := prompts.turn_of_user(tokenizer)) is not None:
        before, end = turn
        count = round(options.answers * QUESTIONS_PER_ANSWER)
        jobs = [Job(number, before, QUESTION_TEMPERATURE) for number in range(count)]
        stop_ids = {*how.stop_ids, end}
        how = replace(how, max_tokens=prompts.QUESTION_TOKENS.stop, stop_ids=stop_ids)
        drawn = collect(how, jobs, work / "questions").drawn(jobs)
        questions = list(prompts.own_questions(drawn, end, tokenizer))
        logger.info("%d of %d own questions are whole", len(questions), count)
    for message in prompts.interleaved(questions, prompts.ordinary_messages(options.seed)):
        yield tuple(prompts.chat(message, tokenizer))


def _fitting(candidates: Iterator[prompts.Prompt], how: Collecting) -> Iterator[prompts.Prompt]:
    longest = most_prompt_tokens(how.model, how.max_tokens)
    return (prompt for prompt in candidates if 0 < len(prompt) <= longest)


def _draft_tokens(options: Options, training: Positions, vocab_size: int) -> Tensor:
    """Returns the tokens that heads can name, ascending: all, or (shared) the most frequent."""
    if options.variant == "full" or not 0 < options.draft_tokens < vocab_size:
        return torch.arange(vocab_size)
    counts = training.likeliest_ids.bincount(minlength=vocab_size)
    return counts.topk(options.draft_tokens).indices.sort().values


def _provenance(
    options: Options, base: str, command: str, splits: Splits, trainer: Trainer
) -> Mapping[str, object]:
    """Returns the card's statements about the base model, the data and the training."""
    included = (
        "Prompts are forms filled with words, of `scripts/medusa/prompts.txt`, and questions that "
        "the model wrote itself, as a user's turn of its chat template (Xu et al. 2024, arXiv "
        "2406.08464)."
    )
    data = included if options.prompts is None else f"Prompts are the lines of `{options.prompts}`."
    if options.held_out is not None:
        data += f" Those to judge by are the lines of `{options.held_out}`."
    beside = "A server that is given this model finds the heads beside it."
    named = f"`MEDUSA_HEADS={options.output}` tells a server that is given this model of them."
    return {
        "base": base,
        "name": Path(base).name,
        "licence": options.licence,
        "data": f"{data} {options.note}".strip(),
        "use": beside if options.output is None else named,
        "command": command,
        "quantization": quantization_on(options.device),
        "max_tokens": options.max_tokens,
        "training_answers": f"{len(splits.training.lengths):,}",
        "training_positions": f"{len(splits.training):,}",
        "calibration_answers": f"{len(splits.calibration.lengths):,}",
        "epochs": f"{trainer.num_positions_done / len(splits.training):.1f}",
    }
