"""`hearth medusa`: trains Medusa heads for a model that Hearth serves (docs/medusa.md)."""

import logging
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click import IntRange

from inference_api.errors import HearthError, StartupError

from .making import make_heads

logger = logging.getLogger(__name__)

PATH = click.Path(path_type=Path)


@click.command()
@click.option("--model", required=True, help="A folder, GGUF file or hub id.")
@click.option("--output", type=PATH, help="Folder of the heads; MODEL/medusa by default.")
@click.option("--work", type=PATH, help="var/medusa/NAME by default.")
@click.option("--start-from", type=PATH, help="Folder of heads for an earlier state of the model.")
@click.option("--prompts", type=PATH, help="One per line: text, or JSON with messages or a prompt.")
@click.option("--held-out", type=PATH, help="Prompts for the evaluation, in the same form.")
@click.option("--answers", type=IntRange(8, 1_000_000), default=2000)
@click.option("--no-more-answers", is_flag=True, help="Train on the answers that exist already.")
@click.option("--max-tokens", type=IntRange(8, 1024), default=192, help="Most of an answer.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option(
    "--processes", type=IntRange(1, 256), default=1, help="That answer; also training threads."
)
@click.option("--heads", type=IntRange(1, 16), default=4)
@click.option("--variant", type=click.Choice(["shared", "full"]), default="shared")
@click.option(
    "--draft-tokens",
    type=IntRange(0, 1_000_000),
    default=8192,
    help="Tokens that shared heads can predict, the most frequent ones; 0: all.",
)
@click.option("--minutes", type=IntRange(1, 10_000), default=20, help="Of training; default: 20.")
@click.option("--steps", type=IntRange(1, 10_000_000), help="Of training, instead of minutes.")
@click.option("--seed", type=IntRange(0, 2**31), default=1)
@click.option("--name", help="Of the base model, for the card and config.json; default: its path.")
@click.option("--licence", default="the base model's", help="For the card.")
@click.option("--note", default="", help="About the model or the prompts, for the card.")
def main(**options: Any) -> None:
    """Train Medusa heads on a model's own answers. Continues an interrupted run."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        make_heads(SimpleNamespace(**options), f"hearth {shlex.join(sys.argv[1:])}")
    except (HearthError, StartupError, ValueError, OSError) as error:
        logger.error("%s", error)
        sys.exit(1)
