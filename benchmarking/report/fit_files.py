"""Writes and reads the files of a fit: the fit, the optimizer's performance data, and a picture."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarking.analysis.fit import Fit
from benchmarking.errors import InvalidResults, unreadable, writing
from common.files import read_bounded, write_whole

FIT_FILE, PERF_FILE, PICTURE_FILE = "fit.json", "perf.json", "fit.svg"
PREDICT_FILE = "predict.json"

MAX_PERF_BYTES, MAX_FIT_BYTES = 2**20, 2**26

_FIT = TypeAdapter(Fit)


def write_fit(folder: Path, fit: Fit, model: str, accelerator: str) -> None:
    """Writes a fit. `perf.json` is a body for the optimizer's `/setModels`. Raises NotWritable."""
    # Importing matplotlib takes half a second, and most commands draw nothing.
    from benchmarking.report.finding_pictures import fit_residuals
    from benchmarking.report.svg import to_svg

    perf = {"models": [fit.perf_data(model, accelerator)]}
    with writing():
        write_whole(folder / FIT_FILE, _FIT.dump_json(fit, indent=1))
        write_whole(folder / PERF_FILE, json.dumps(perf, indent=1) + "\n")
        write_whole(folder / PICTURE_FILE, to_svg(fit_residuals(fit), "fit"))


def read_perf(path: Path) -> dict[str, Any]:
    """Returns the first performance data in a file. Raises InvalidResults."""
    try:
        found: dict[str, Any] = json.loads(read_bounded(path, MAX_PERF_BYTES))["models"][0]
        names = {key: str(found[key]) for key in ("name", "acc")}
        return found | names | {key: int(found[key]) for key in ("maxBatchSize", "atTokens")}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidResults(f"{path}: {error}; see fit") from error


def read_fit(folder: Path) -> Fit | None:
    """Returns the fit in a folder; None if it has none. Raises InvalidResults."""
    path = folder / FIT_FILE
    if not path.exists():
        return None
    try:
        return _FIT.validate_json(read_bounded(path, MAX_FIT_BYTES))
    except (OSError, ValueError) as error:
        raise unreadable(path, error, Fit) from error
