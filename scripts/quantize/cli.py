"""`hearth quantize MODEL OUT.gguf`: fewer bits for a GGUF model, to serve it in less memory."""

import logging
import sys
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from common.files import read_bounded
from inference_api.errors import StartupError
from inference_api.loading.gguf import SUFFIX, is_gguf
from inference_api.loading.hardware import INSTALL_TORCH
from scripts.quantize.making import make

MAX_TEXT_BYTES = 16 * 1024**2
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FAILED = 1  # exit status


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.argument("target", metavar="OUT.gguf", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--calibrate",
    type=FILE,
    help="A text of the kind that the model will read and write; the first 8,192 tokens count.",
)
def main(model: Path, target: Path, calibrate: Path | None) -> None:
    """Write MODEL, a GGUF file, in at most 5 bits a weight. Begin with F32, F16 or BF16: other
    types have lost something already, and lose again."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        _check(model, target)
        start = None
        if calibrate is not None:
            text = _text(calibrate)
            from scripts.quantize.calibration import begin  # imports torch, if it is there

            start = partial(begin, text)
        bits, weights = make(model, target, start)
    except StartupError as error:
        click.echo("\n".join(error.faults), err=True)
        sys.exit(FAILED)
    except OSError as error:
        click.echo(f"{target} was not written: {error}", err=True)
        sys.exit(FAILED)
    click.echo(_summary(model, target, bits, weights))


def _check(model: Path, target: Path) -> None:
    if model.is_dir() or not is_gguf(model):
        raise StartupError(f"{model} is no GGUF file; convert the model to one of F16.")
    if not is_gguf(target):
        raise StartupError(f"{target} does not end with {SUFFIX}; name it so.")
    if not target.parent.is_dir():
        raise StartupError(f"The folder {target.parent} is not there; make it.")
    if target.exists() and target.samefile(model):
        raise StartupError(f"{target} is MODEL itself; choose another name.")


def _text(file: Path) -> str:
    try:
        text = read_bounded(file, MAX_TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        raise StartupError(f"{file} is no UTF-8 text to calibrate by: {error}.") from None
    if find_spec("torch") is None:
        raise StartupError(f"--calibrate needs torch; {INSTALL_TORCH}, or leave it out.")
    return text


def _summary(model: Path, target: Path, bits: float, weights: Counter[str]) -> str:
    before, after = (file.stat().st_size for file in (model, target))
    total = weights.total()
    shares = ", ".join(f"{100 * n / total:.1f} % {name}" for name, n in weights.most_common())
    return f"{target}: {after} bytes of {before}, {bits:.2f} bits a weight of matrices ({shares})"
