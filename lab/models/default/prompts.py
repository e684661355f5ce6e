"""Prompts in the wordings of the corpus, for training heads that draft for the model.

Those to train with are in training wordings, those to judge by in held-out ones.
"""

import json
from pathlib import Path
from random import Random

from common.files import write_whole

from .documents import Corpus

_BARE_SHARE, _LATER_TURN_SHARE = 0.3, 0.2


def write_prompts(work: Path, seed: int, count: int) -> None:
    """A tenth of `count` is held out. One JSON object a line, with `messages` or `prompt`."""
    for name, number, held_out in (
        ("prompts", count, False),
        ("held_out_prompts", count // 10, True),
    ):
        corpus, rng = Corpus(seed, held_out=held_out), Random(seed)
        lines = [json.dumps(_prompt(corpus, rng), ensure_ascii=False) for _ in range(number)]
        write_whole(work / f"{name}.jsonl", "\n".join(lines) + "\n")


def _prompt(corpus: Corpus, rng: Random) -> dict[str, object]:
    kind = rng.random()
    if kind < _BARE_SHARE:
        return {"prompt": corpus.exchange().question}
    has_history = kind < _BARE_SHARE + _LATER_TURN_SHARE
    *history, last = corpus.dependent_exchanges() if has_history else [corpus.exchange()]
    messages = []
    for turn in history:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    return {"messages": [*messages, {"role": "user", "content": last.question}]}
