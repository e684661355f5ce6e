"""Writes the model card from the files that the stages left behind: no number in it is typed in."""

import json
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from common.files import write_whole

from .model import ModelShape
from .numbers import MAX_COMPARED, MAX_FACTOR, MAX_OPERAND
from .tables import read_tsv
from .training import TrainingPlan
from .wordings import DATA_DIR, fill_slots


def write_card(plan: TrainingPlan, model_dir: Path, note: str = "") -> None:
    """`note` tells what the files do not, such as a change of the corpus in the middle of a run."""
    evaluation = json.loads((model_dir / "evaluation.json").read_text(encoding="utf-8"))
    slots: dict[str, object] = {
        **_shape_slots(model_dir),
        **_data_slots(plan.work),
        **training_slots(plan),
        "accuracy": _accuracy_table(evaluation),
        "samples": _samples_table(evaluation["samples"]),
        "note": note,
        "machine": describe_machine(),
        "date": date.today().isoformat(),
    }
    template = (DATA_DIR / "model_card.md").read_text(encoding="utf-8")
    card = fill_slots(template, {name: str(value) for name, value in slots.items()})
    write_whole(model_dir / "README.md", card)


def describe_machine() -> str:
    """Processor, cores and torch version, without anything that names the host."""
    processor = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
        names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    version = torch.__version__.partition("+")[0]
    return f"{os.cpu_count()} cores of {processor} with torch {version}"


def _shape_slots(model_dir: Path) -> dict[str, object]:
    shape = ModelShape()
    path = model_dir / "model.safetensors"
    with safe_open(path, framework="pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    return {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_positions": shape.max_positions,
        "parameters": f"{parameters:,}",
        "weights_mb": f"{path.stat().st_size / 1e6:.1f}",
    }


def _data_slots(work: Path) -> dict[str, object]:
    figures = json.loads((work / "corpus.json").read_text(encoding="utf-8"))
    return {
        "seed": figures["seed"],
        "documents": f"{figures['documents']:,}",
        "long_documents": f"{figures['long_documents']:,}",
        "corpus_tokens": f"{figures['tokens']:,}",
        "num_countries": len(read_tsv("countries")),
        "num_cities": len(read_tsv("cities")),
        "num_famous": len(read_tsv("famous")),
        "num_terms": len(read_tsv("glossary")),
        "max_operand": MAX_OPERAND,
        "max_factor": MAX_FACTOR,
        "max_compared": MAX_COMPARED,
    }


def training_slots(plan: TrainingPlan) -> dict[str, object]:
    lines = (plan.work / "training.jsonl").read_text(encoding="utf-8").splitlines()
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    losses = [entry["loss"] for entry in entries if "loss" in entry][-10:]
    last = entries[-1]
    return {
        "train_tokens": f"{last['tokens']:,}",
        "minutes": f"{last['seconds'] / 60:.0f}",
        "tokens_per_s": f"{last['tokens'] / last['seconds']:,.0f}",
        "loss": f"{sum(losses) / len(losses):.3f}",
        "validation_loss": f"{last['validation_loss']:.3f}",
        "num_processes": plan.num_processes,
        "dtype": plan.dtype,
    }


def _accuracy_table(evaluation: dict[str, Any]) -> str:
    rows = {
        **evaluation["accuracy_by_category"],
        **{f"*{name} format*": entry for name, entry in evaluation["accuracy_by_format"].items()},
        "**all**": evaluation["overall"],
    }
    lines = ["| category | right | questions | accuracy |", "|---|---|---|---|"]
    for name, entry in rows.items():
        accuracy = f"{100 * entry['accuracy']:.1f} %"
        lines.append(f"| {name} | {entry['right']} | {entry['questions']} | {accuracy} |")
    return "\n".join(lines)


def _samples_table(samples: list[dict[str, str]]) -> str:
    lines = ["| format | question | answer |", "|---|---|---|"]
    lines += [f"| {s['format']} | {s['question']} | {s['answer']} |" for s in samples]
    return "\n".join(lines)
