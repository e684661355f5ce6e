"""Compares the router for `model: "auto"` with other ways to choose an expert: `make bench-router`.

A labelled set of messages is split into five folds, five times: each way learns from four folds and
is asked about the fifth. Then the routers of the example bundles, which learn from the bundles'
descriptions and examples, are asked about all messages.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier

from benchmarking.machine import describe_machine
from inference_api.bundle.router import MemberRouter
from lab.benches.router.hidden_states import mean_states
from lab.kit.servers import ROOT

MESSAGES = ROOT / "lab" / "data" / "routed_messages.yaml"
MODEL = ROOT / "models" / "hearth-tiny"
# Bundle -> the expert for messages that no other expert is for.
BUNDLES = {"bundle.yaml": "hearth-tiny", "bundle-smollm2.yaml": "smollm2"}
FALLBACK = "general"
NUM_FOLDS, NUM_REPEATS = 5, 5
NUM_NEIGHBOURS = 10
NUM_BINS = 10  # bins of confidence


@dataclass(frozen=True, slots=True)
class Labelled:
    text: str
    expert: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one message, with its confidence and duration."""

    message: Labelled
    chosen: str
    confidence: float
    duration_ms: float = 0.0

    @property
    def is_right(self) -> bool:
        return self.chosen == self.message.expert


Choose = Callable[[str], tuple[str, float]]
Learn = Callable[[Sequence[Labelled]], Choose]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threshold", type=float, default=0.35)
    threshold = parser.parse_args().threshold
    messages = labelled_messages()
    counts = Counter(message.expert for message in messages)
    print(f"{describe_machine('scikit-learn', 'torch')}\n")
    print(f"{len(messages)} messages: {', '.join(f'{n} {name}' for name, n in counts.items())}\n")
    ways: dict[str, Learn] = {
        "fallback only": lambda _: lambda _text: (FALLBACK, 1.0),
        "random": _random(list(counts)),
        "hidden states, k-NN": _nearest(messages),
        "TF-IDF, logistic regression": _router,
        "oracle": lambda _: _oracle(messages),
    }
    decisions = {name: _folded(learn, messages) for name, learn in ways.items()}
    _print_table(decisions, threshold, FALLBACK)
    _print_confusion(decisions["TF-IDF, logistic regression"], list(counts))
    for name, fallback in BUNDLES.items():
        _print_bundle(ROOT / "models" / name, fallback, messages, threshold)


def labelled_messages() -> list[Labelled]:
    by_expert: dict[str, list[str]] = yaml.safe_load(MESSAGES.read_text(encoding="utf-8"))
    return [Labelled(text, expert) for expert, texts in by_expert.items() for text in texts]


def experts_of(bundle: Path) -> dict[str, list[str]]:
    """Returns the description and examples of each expert, by name."""
    entries: list[dict[str, Any]] = yaml.safe_load(bundle.read_text(encoding="utf-8"))["experts"]
    return {each["name"]: [each["description"], *each["examples"]] for each in entries}


def _folded(learn: Learn, messages: Sequence[Labelled]) -> list[Decision]:
    """Returns a decision per message and repeat, learned from the other folds' messages."""
    labels = [message.expert for message in messages]
    decisions = []
    for seed in range(NUM_REPEATS):
        folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=seed)
        for known, asked in folds.split(labels, labels):
            choose = learn([messages[i] for i in known])
            decisions += [_decided(choose, messages[i]) for i in asked]
    return decisions


def _decided(choose: Choose, message: Labelled) -> Decision:
    started = time.perf_counter()
    expert, confidence = choose(message.text)
    return Decision(message, expert, confidence, (time.perf_counter() - started) * 1e3)


def _random(experts: Sequence[str]) -> Learn:
    dice = random.Random(0)
    return lambda _: lambda _text: (dice.choice(experts), 1 / len(experts))


def _oracle(messages: Iterable[Labelled]) -> Choose:
    expert_by_text = {message.text: message.expert for message in messages}
    return lambda text: (expert_by_text[text], 1.0)


def _router(known: Sequence[Labelled]) -> Choose:
    names = dict.fromkeys(message.expert for message in known)
    return _choose_by({name: [m.text for m in known if m.expert == name] for name in names})


def _choose_by(experts: Mapping[str, Sequence[str]]) -> Choose:
    """Returns a function that chooses the likeliest expert at any confidence."""
    router = MemberRouter.of(experts, threshold=0.0, fallback=FALLBACK)

    def choose(text: str) -> tuple[str, float]:
        route = router.route([text])
        return route.member, route.confidence

    return choose


def _nearest(messages: Sequence[Labelled]) -> Learn:
    """Chooses by nearest hidden states of the default model, averaged over a message's tokens."""
    state_of = mean_states(MODEL)
    known_states = {message.text: state_of(message.text) for message in messages}

    def learn(known: Sequence[Labelled]) -> Choose:
        neighbours = KNeighborsClassifier(NUM_NEIGHBOURS, metric="cosine", weights="distance")
        neighbours.fit([known_states[m.text] for m in known], [m.expert for m in known])

        def choose(text: str) -> tuple[str, float]:
            (shares,) = neighbours.predict_proba([state_of(text)])
            return str(neighbours.classes_[shares.argmax()]), float(shares.max())

        return choose

    return learn


def _print_table(
    decisions_by_way: dict[str, list[Decision]], threshold: float, fallback: str
) -> None:
    columns = (
        "accuracy", "macro-F1", "calibration error", f"sure ({threshold:g} and more)",
        "right of these", "accuracy with the fallback", "switches", "p50 ms", "p99 ms",
    )  # fmt: skip
    print(f"| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, decisions in decisions_by_way.items():
        print(f"| {name} | {' | '.join(_figures(decisions, threshold, fallback))} |")


def _figures(decisions: Sequence[Decision], threshold: float, fallback: str) -> Iterable[str]:
    sure = [each for each in decisions if each.confidence >= threshold]
    answered = [each.chosen if each.confidence >= threshold else fallback for each in decisions]
    expected = [each.message.expert for each in decisions]
    shuffled = random.Random(0).sample(answered, len(answered))
    p50, p99 = np.percentile([each.duration_ms for each in decisions], (50, 99))
    macro_f1 = f1_score(expected, [each.chosen for each in decisions], average="macro")
    yield _percent(np.mean([each.is_right for each in decisions]))
    yield f"{macro_f1:.3f}"
    yield f"{_calibration_error(decisions):.3f}"
    yield _percent(len(sure) / len(decisions))
    yield _percent(np.mean([each.is_right for each in sure])) if sure else "-"
    yield _percent(np.mean([a == e for a, e in zip(answered, expected, strict=True)]))
    yield _percent(np.mean([a != b for a, b in pairwise(shuffled)]))
    yield f"{p50:.2f}"
    yield f"{p99:.2f}"


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"


def _calibration_error(decisions: Sequence[Decision]) -> float:
    """Returns the expected calibration error: the mean difference of confidence and accuracy."""
    bins: dict[int, list[Decision]] = {}
    for each in decisions:
        bins.setdefault(min(int(each.confidence * NUM_BINS), NUM_BINS - 1), []).append(each)
    gaps = (abs(sum(each.confidence - each.is_right for each in part)) for part in bins.values())
    return sum(gaps) / len(decisions)


def _print_confusion(decisions: Sequence[Decision], experts: Sequence[str]) -> None:
    pairs = Counter((each.message.expert, each.chosen) for each in decisions)
    print(f"\n| should \\ did | {' | '.join(experts)} |\n|{'---|' * (len(experts) + 1)}")
    for expert in experts:
        counts = (f"{pairs[expert, chosen] / NUM_REPEATS:g}" for chosen in experts)
        print(f"| {expert} | {' | '.join(counts)} |")


def _print_bundle(
    bundle: Path, general: str, messages: Sequence[Labelled], threshold: float
) -> None:
    experts = experts_of(bundle)
    expert_by_label = {"general": general, "facts": "hearth-tiny"}
    renamed = [Labelled(m.text, expert_by_label.get(m.expert, m.expert)) for m in messages]
    started = time.perf_counter()
    choose = _choose_by(experts)
    learned_s = time.perf_counter() - started
    num_texts = sum(map(len, experts.values()))
    print(f"\n{bundle.name}: learned from {num_texts} texts in {learned_s:.2f} s\n")
    decisions = [_decided(choose, message) for message in renamed]
    always = [Decision(message, general, 1.0) for message in renamed]
    _print_table({"fallback only": always, "its router": decisions}, threshold, general)
