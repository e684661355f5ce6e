"""Makes the embedded default model: corpus, tokenizer, training, export, evaluation and card.

`python -m lab.models.default all` runs every stage; training resumes from its last checkpoint.
"""

import argparse
import json
import logging
import shutil
from pathlib import Path

from common.files import write_whole

from .card import write_card
from .evaluation import evaluate
from .export import export, held_out_text
from .preparation import prepare_tokenizer, prepare_windows
from .prompts import write_prompts
from .training import TrainingPlan, start_from, train

STAGES = ("tokenizer", "corpus", "train", "export", "evaluate", "card")
logger = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    plan = TrainingPlan(Path())
    parser = argparse.ArgumentParser(description="Make the embedded default model from one seed.")
    parser.add_argument("stage", choices=(*STAGES, "all", "start", "prompts"))
    parser.add_argument("--work", type=Path, default=Path("var/default-model"))
    parser.add_argument("--model", type=Path, default=Path("models/hearth-tiny"))
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--documents", type=int, default=400_000)
    parser.add_argument("--tokens", type=int, default=plan.tokens)
    parser.add_argument("--peak-lr-scale", type=float, default=plan.peak_lr_scale)
    parser.add_argument("--processes", type=int, default=plan.num_processes)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=plan.dtype)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--questions", type=int, default=300, help="judged per category")
    parser.add_argument("--prompts", type=int, default=6000, help="for `hearth medusa`")
    parser.add_argument("--note", default="", help="a remark on this run for the model card")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for stage in STAGES if options.stage == "all" else (options.stage,):
        _run_stage(stage, options)
    return 0


def _run_stage(stage: str, options: argparse.Namespace) -> None:
    if stage == "tokenizer":
        options.work.mkdir(parents=True, exist_ok=True)
        prepare_tokenizer(options.work, options.seed)
    elif stage == "start":  # in place of a tokenizer of its own: go on from the model's weights
        options.work.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(options.model / "tokenizer.json", options.work / "tokenizer.json")
        start_from(options.model, options.work)
    elif stage == "corpus":
        logger.info("corpus: %s", prepare_windows(options.work, options.seed, options.documents))
    elif stage == "train":
        train(_plan(options))
    elif stage == "prompts":
        options.work.mkdir(parents=True, exist_ok=True)
        write_prompts(options.work, options.seed, options.prompts)
    elif stage == "export":
        export(options.work, options.model)
        text = held_out_text(options.seed)
        write_whole(options.model / "heldout.txt", text)
    elif stage == "card":
        write_card(_plan(options), options.model, options.note)
    else:
        report = evaluate(options.model, options.work, options.seed, options.questions)
        logger.info("%s", json.dumps(report, indent=2))


def _plan(options: argparse.Namespace) -> TrainingPlan:
    return TrainingPlan(
        work=options.work,
        tokens=options.tokens,
        seed=options.seed,
        num_processes=options.processes,
        peak_lr_scale=options.peak_lr_scale,
        dtype=options.dtype,
        compile=not options.no_compile,
    )


if __name__ == "__main__":
    raise SystemExit(main())
