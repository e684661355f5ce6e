"""Judges the exported files, loaded through `transformers`, by greedy answers to unseen questions.

Every question is in a wording, and every sum of operands, that training never saw. Half of the
questions are put in the chat format and half as bare text, as the two kinds of serving route do.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from common.files import write_whole

from .documents import Corpus
from .relations import CATEGORY_WEIGHTS, Exchange

SAMPLE_QUESTIONS = ("Have you been to Paris, France?", "What is the capital of Kenya?")
_MAX_NEW_TOKENS = 220
_BATCH = 50


@dataclass(frozen=True, slots=True)
class Trial:
    """A question to the model: its turns so far, and the exchange that is judged."""

    category: str
    exchange: Exchange
    history: tuple[Exchange, ...] = ()
    is_chat: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    trial: Trial
    reply: str

    @property
    def is_right(self) -> bool:
        return self.trial.exchange.is_right(self.reply)


class Judge:
    """Loads a model folder once and answers greedily, many questions at a time."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_dir)
        # Any: the typed `generate` of transformers cannot be called on the class it returns here.
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)

    def prompt_ids(self, trial: Trial) -> list[int]:
        if not trial.is_chat:
            ids: list[int] = self._tokenizer(trial.exchange.question)["input_ids"]
            return ids
        messages = []
        for turn in trial.history:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        messages.append({"role": "user", "content": trial.exchange.question})
        text = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        chat_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return chat_ids

    @torch.inference_mode()
    def replies(self, prompts: Sequence[list[int]]) -> list[str]:
        """Greedy continuations, in the order of the prompts."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        replies = [""] * len(prompts)
        for start in range(0, len(order), _BATCH):
            picks = order[start : start + _BATCH]
            width = max(len(prompts[i]) for i in picks)
            pad_id = self._tokenizer.pad_token_id
            ids = torch.tensor([[pad_id] * (width - len(prompts[i])) + prompts[i] for i in picks])
            output = self._model.generate(
                ids,
                attention_mask=(ids != pad_id).long(),
                max_new_tokens=_MAX_NEW_TOKENS,
                do_sample=False,
            )
            for i, row in zip(picks, output[:, width:], strict=True):
                replies[i] = str(self._tokenizer.decode(row, skip_special_tokens=True)).strip()
        return replies

    def judge(self, trials: Sequence[Trial]) -> list[Verdict]:
        replies = self.replies([self.prompt_ids(trial) for trial in trials])
        return [Verdict(trial, reply) for trial, reply in zip(trials, replies, strict=True)]


def draw_trials(seed: int, per_category: int) -> list[Trial]:
    corpus = Corpus(seed, held_out=True)
    trials = [
        Trial(category, corpus.exchange(category), is_chat=number % 2 == 0)
        for category in CATEGORY_WEIGHTS
        for number in range(per_category)
    ]
    for _ in range(per_category):
        *history, last = corpus.dependent_exchanges()
        trials.append(Trial("conversation", last, tuple(history)))
    for _ in range(per_category // 3):
        *history, last = corpus.long_exchanges()
        trials.append(Trial("long_conversation", last, tuple(history)))
    return trials


def accuracy(verdicts: Iterable[Verdict]) -> dict[str, float | int]:
    rights = [verdict.is_right for verdict in verdicts]
    return {
        "right": sum(rights),
        "questions": len(rights),
        "accuracy": round(sum(rights) / max(1, len(rights)), 4),
    }


def evaluate(model_dir: Path, work: Path, seed: int, per_category: int) -> dict[str, object]:
    """Writes `evaluation.json` beside the model, and the wrong answers into the work folder."""
    judge = Judge(model_dir)
    verdicts = judge.judge(draw_trials(seed, per_category))
    categories = list(dict.fromkeys(verdict.trial.category for verdict in verdicts))
    report: dict[str, object] = {
        "seed": seed,
        "decoding": "greedy",
        "accuracy_by_category": {
            category: accuracy(v for v in verdicts if v.trial.category == category)
            for category in categories
        },
        "accuracy_by_format": {
            "chat": accuracy(v for v in verdicts if v.trial.is_chat),
            "bare": accuracy(v for v in verdicts if not v.trial.is_chat),
        },
        "accuracy_by_relation": {
            relation: accuracy(v for v in verdicts if v.trial.exchange.relation == relation)
            for relation in sorted({v.trial.exchange.relation for v in verdicts})
        },
        "overall": accuracy(verdicts),
        "samples": _samples(judge),
    }
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_whole(model_dir / "evaluation.json", text)
    _write_wrong_answers(work, verdicts)
    return report


def _samples(judge: Judge) -> list[dict[str, str]]:
    trials = [
        Trial("sample", Exchange("", "", question, "", ()), is_chat=is_chat)
        for question in SAMPLE_QUESTIONS
        for is_chat in (True, False)
    ]
    return [
        {
            "question": verdict.trial.exchange.question,
            "format": "chat" if verdict.trial.is_chat else "bare",
            "answer": verdict.reply,
        }
        for verdict in judge.judge(trials)
    ]


def _write_wrong_answers(work: Path, verdicts: Sequence[Verdict]) -> None:
    wrong = [
        {
            "relation": verdict.trial.exchange.relation,
            "format": "chat" if verdict.trial.is_chat else "bare",
            "question": verdict.trial.exchange.question,
            "expected": verdict.trial.exchange.answer,
            "reply": verdict.reply,
        }
        for verdict in verdicts
        if not verdict.is_right
    ]
    path = work / "wrong_answers.json"
    write_whole(path, json.dumps(wrong, indent=1, ensure_ascii=False))
