"""One expert from the default model: windows of its topic, training, export and judgement.

The work folder keeps the windows and the checkpoint, so a run that was stopped goes on.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from common.files import write_whole
from lab.models.default.documents import Corpus
from lab.models.default.evaluation import Judge, Trial, Verdict, accuracy, draw_trials
from lab.models.default.export import export
from lab.models.default.preparation import prepare_windows
from lab.models.default.training import TrainingPlan, start_from, train

from .card import write_card
from .topics import Topic

NUM_SAMPLES = 4
_TOKENS_PER_DOCUMENT = 60  # a little under what they have, so that none is read twice


@dataclass(frozen=True, slots=True)
class Recipe:
    """How every expert is made. `topic_questions` are judged of its topic, `other_questions` of
    each category of the default model."""

    base: Path
    seed: int
    topic_questions: int
    other_questions: int


def make(topic: Topic, recipe: Recipe, plan: TrainingPlan, model_dir: Path) -> None:
    plan.work.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(recipe.base / "tokenizer.json", plan.work / "tokenizer.json")
    if not (plan.work / "checkpoint.pt").exists():
        num_documents = round(plan.tokens / _TOKENS_PER_DOCUMENT)
        prepare_windows(plan.work, recipe.seed, num_documents, topic.relations)
        start_from(recipe.base, plan.work)
    train(plan)
    export(plan.work, model_dir)
    report = judge(topic, recipe, model_dir)
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_whole(model_dir / "evaluation.json", text)
    write_card(topic, plan, recipe.base, model_dir)


def topic_trials(topic: Topic, seed: int, count: int) -> list[Trial]:
    """Held-out questions of the topic, half of them in the chat format."""
    corpus = Corpus(seed, held_out=True, topic=topic.relations)
    return [
        Trial(topic.name, corpus.exchange(topic.name), is_chat=number % 2 == 0)
        for number in range(count)
    ]


def judge(topic: Topic, recipe: Recipe, model_dir: Path) -> dict[str, object]:
    """The expert's accuracy beside that of the default model, on the same held-out questions."""
    asked = topic_trials(topic, recipe.seed, recipe.topic_questions)
    others = draw_trials(recipe.seed, recipe.other_questions)
    report: dict[str, object] = {"seed": recipe.seed, "decoding": "greedy"}
    for name, folder in (("expert", model_dir), ("base", recipe.base)):
        judged = Judge(folder)
        verdicts = judged.judge(asked)
        report[name] = {
            "topic": accuracy(verdicts),
            "by_relation": _by_relation(verdicts),
            "other_topics": accuracy(judged.judge(others)),
            "samples": [_sample(verdict) for verdict in verdicts[:NUM_SAMPLES]],
        }
    return report


def _by_relation(verdicts: list[Verdict]) -> dict[str, dict[str, float | int]]:
    relations = sorted({verdict.trial.exchange.relation for verdict in verdicts})
    return {
        relation: accuracy(v for v in verdicts if v.trial.exchange.relation == relation)
        for relation in relations
    }


def _sample(verdict: Verdict) -> dict[str, object]:
    return {
        "question": verdict.trial.exchange.question,
        "answer": verdict.reply,
        "is_right": verdict.is_right,
    }
