"""Writes the card of trained heads. All numbers in it are measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from benchmarking.machine import describe_machine
from common.files import write_whole
from inference_api.loading.drafting import WEIGHTS

from .heads import Heads
from .jobs import SAMPLED_TEMPERATURE
from .judging import TOP, Judgement
from .training import LATER_HEAD_WEIGHT, Trainer

TEMPLATE = Path(__file__).parent / "card.md"


def write_card(
    folder: Path,
    provenance: Mapping[str, object],
    heads: Heads,
    num_paths: int,
    trainer: Trainer,
    judgement: Judgement,
) -> None:
    plan = trainer.plan
    num_tokens, hidden_size = heads.outputs.shape[1:]
    full = "full: each with an output matrix of its own"
    shared = "shared: they speak through the model's own output matrix"
    slots: dict[str, object] = {
        "num_heads": heads.num_heads,
        "variant": full if heads.is_full else shared,
        "hidden_size": hidden_size,
        "named": f"{num_tokens:,}",
        "size_mb": f"{(folder / WEIGHTS).stat().st_size / 1e6:.1f}",
        "steps": f"{trainer.step:,}",
        "positions_per_step": plan.positions_per_step,
        "seen": f"{trainer.num_positions_done:,}",
        "minutes": f"{trainer.seconds / 60:.0f}",
        "machine": describe_machine("torch"),
        "block_lr": plan.block_lr,
        "output_lr": f" ({plan.output_lr} for output matrices)" if heads.is_full else "",
        "decay": LATER_HEAD_WEIGHT,
        **provenance,
        "temperature": SAMPLED_TEMPERATURE,
        "held_out_answers": f"{judgement.answers:,}",
        "held_out_positions": f"{judgement.positions:,}",
        "num_paths": num_paths,
        "accuracy": _accuracy_table(judgement.top),
        "trivial": f"{judgement.trivial:.1%}",
        "tokens_per_step": _tokens_table(judgement),
    }
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    write_whole(folder / "README.md", template.substitute(slots))


def _accuracy_table(top: Sequence[Sequence[float]]) -> str:
    lines = ["| head | " + " | ".join(f"top {count}" for count in TOP) + " |"]
    lines.append("|---" * (1 + len(TOP)) + "|")
    for head, shares in enumerate(top):
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
        lines.append(f"| {head} | {cells} |")
    return "\n".join(lines)


def _tokens_table(judgement: Judgement) -> str:
    rows: Mapping[str, float] = {
        **{f"chain of {n} guesses": tokens for n, tokens in judgement.tokens_by_chain.items()},
        **{
            f"tree of {n} nodes, the certain token's with them": tokens
            for n, tokens in judgement.tokens_by_nodes.items()
        },
    }
    lines = ["| | tokens a step |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {tokens:.2f} |" for name, tokens in rows.items()])
