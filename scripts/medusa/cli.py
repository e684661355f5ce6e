"""`hearth medusa`: trains Medusa heads for a model that Hearth serves (docs/medusa.md)."""

import argparse
import logging
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from inference_api.errors import HearthError, StartupError

from .making import make_heads

logger = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hearth medusa",
        description="Train Medusa heads on a model's own answers. Continues an interrupted run.",
    )
    add = parser.add_argument
    add("--model", required=True, help="a folder, GGUF file or hub id")
    add("--output", type=Path, help="folder of the heads; MODEL/medusa by default")
    add("--work", type=Path, help="var/medusa/NAME by default")
    add("--start-from", type=Path, help="folder of heads for an earlier state of the model")
    add("--prompts", type=Path, help="one per line: text, or JSON with messages or a prompt")
    add("--held-out", type=Path, help="prompts for the evaluation, in the same form")
    add("--answers", type=_within(8, 1_000_000), default=2000)
    add("--no-more-answers", action="store_true", help="train on the answers that exist already")
    add("--max-tokens", type=_within(8, 1024), default=192, help="maximum length of an answer")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--processes", type=_within(1, 256), default=1, help="that answer; also training threads")
    add("--heads", type=_within(1, 16), default=4)
    add("--variant", choices=("shared", "full"), default="shared")
    add(
        "--draft-tokens",
        type=_within(0, 1_000_000),
        default=8192,
        help="tokens that shared heads can predict, the most frequent ones; 0: all",
    )
    add("--minutes", type=_within(1, 10_000), default=20, help="of training; default: 20")
    add("--steps", type=_within(1, 10_000_000), help="of training, instead of minutes")
    add("--seed", type=_within(0, 2**31), default=1)
    add("--name", help="of the base model, for the card and config.json; default: its path")
    add("--licence", default="the base model's", help="for the card")
    add("--note", default="", help="a note about the model or the prompts, for the card")
    return parser


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = build_parser().parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        make_heads(options, f"hearth medusa {shlex.join(words)}")
    except (HearthError, StartupError, ValueError, OSError) as error:
        logger.error("%s", error)
        return 1
    return 0


def _within(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low} to {high}")
        return int(text)

    return number
