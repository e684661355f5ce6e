"""The model card of an expert, from what was measured."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from common.files import write_whole
from lab.models.default.card import describe_machine, training_slots
from lab.models.default.training import TrainingPlan
from lab.models.default.wordings import fill_slots

from .topics import DATA_DIR, Topic


def write_card(topic: Topic, plan: TrainingPlan, base: Path, model_dir: Path) -> None:
    report = json.loads((model_dir / "evaluation.json").read_text(encoding="utf-8"))
    corpus = json.loads((plan.work / "corpus.json").read_text(encoding="utf-8"))
    slots = {
        **training_slots(plan),
        "name": topic.name,
        "base": base.name,
        "description": topic.description,
        "weights_mb": f"{(model_dir / 'model.safetensors').stat().st_size / 1e6:.1f}",
        "documents": f"{corpus['documents']:,}",
        "corpus_tokens": f"{corpus['tokens']:,}",
        "seed": corpus["seed"],
        "peak_lr_scale": plan.peak_lr_scale,
        "accuracy": _accuracy_table(report, base.name),
        "samples": _samples_table(report["expert"]["samples"]),
        "machine": describe_machine(),
        "date": date.today().isoformat(),
    }
    template = (DATA_DIR / "card.md").read_text(encoding="utf-8")
    card = fill_slots(template, {name: str(value) for name, value in slots.items()})
    write_whole(model_dir / "README.md", card)


def _accuracy_table(report: dict[str, Any], base: str) -> str:
    expert, before = report["expert"], report["base"]
    rows = {
        **{
            name: (entry, before["by_relation"][name])
            for name, entry in expert["by_relation"].items()
        },
        "**the topic**": (expert["topic"], before["topic"]),
        f"what {base} was made for": (expert["other_topics"], before["other_topics"]),
    }
    lines = [f"| questions | asked | this model | {base} |", "|---|---|---|---|"]
    for name, (entry, known) in rows.items():
        shares = (f"{100 * each['accuracy']:.1f} %" for each in (entry, known))
        lines.append(f"| {name} | {entry['questions']} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _samples_table(samples: list[dict[str, Any]]) -> str:
    lines = ["| question | answer | right |", "|---|---|---|"]
    for sample in samples:
        cells = [
            sample[name].replace("\n", "<br>").replace("|", "\\|")
            for name in ("question", "answer")
        ]
        lines.append(f"| {cells[0]} | {cells[1]} | {'yes' if sample['is_right'] else 'no'} |")
    return "\n".join(lines)
