"""Makes the experts of models/bundle.yaml: the default model, trained on for one topic each.

    python -m lab.models.experts [NAME...]

Each takes minutes on two cores, and one that was stopped goes on. To begin anew, remove its folder
in var/experts.
"""

import argparse
import logging
from pathlib import Path

from lab.models.default.training import TrainingPlan
from lab.models.experts.making import Recipe, make
from lab.models.experts.topics import load_topics

MODELS = Path(__file__).resolve().parents[3] / "models"


def main(arguments: list[str] | None = None) -> None:
    topics = load_topics()
    options = _options(arguments, list(topics))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    recipe = Recipe(
        base=options.base,
        seed=options.seed,
        topic_questions=options.questions,
        other_questions=options.questions // 20,
    )
    for name in options.names:
        plan = TrainingPlan(
            work=options.work / name,
            tokens=topics[name].tokens,
            tokens_per_step=4096,
            seed=options.seed,
            num_processes=options.processes,
            peak_lr_scale=0.5,
            compile=not options.no_compile,
        )
        make(topics[name], recipe, plan, options.models / name)
        logging.info("%s: %s", name, options.models / name)


def _options(arguments: list[str] | None, known: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", default=known)
    parser.add_argument("--base", type=Path, default=MODELS / "hearth-tiny")
    parser.add_argument("--models", type=Path, default=MODELS / "experts")
    parser.add_argument("--work", type=Path, default=Path("var/experts"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--questions", type=int, default=400, help="judged of a topic")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(known):
        parser.error(f"no expert {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return options


if __name__ == "__main__":
    main()
