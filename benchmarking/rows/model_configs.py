"""Reads the model_configs CSV, in which a row is a group of requests. Faults name every wrong cell.

A row with faults is refused by itself. A file without a usable header or rows is refused entirely.
"""

import csv
from collections import Counter
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from benchmarking.errors import InvalidConfig
from benchmarking.records import (
    MAX_QPS,
    MAX_REQUESTS,
    MAX_TOKENS,
    MAX_USERS,
    Distribution,
    ImageSize,
    Workload,
)
from common.faults import fault_of
from common.files import read_bounded

MAX_BYTES, MAX_ROWS = 16 * 2**20, 10_000
MIN_INPUT_TOKENS = 40


class Cells(BaseModel):
    """One row of the file. Empty cells, and columns that are absent, have defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_name: str
    input_tokens: int = Field(ge=MIN_INPUT_TOKENS, le=MAX_TOKENS)
    output_tokens: int = Field(ge=1, le=MAX_TOKENS)
    num_requests: int = Field(ge=1, le=MAX_REQUESTS)
    concurrent_requests: int = Field(0, ge=0, le=MAX_USERS)
    qps: float = Field(0.0, ge=0, le=MAX_QPS, allow_inf_nan=False)
    qps_distribution: Distribution = "constant"
    # Other clients of this format write "Small" or "N/A".
    multimodal_img_size: Annotated[
        ImageSize, BeforeValidator(lambda cell: cell.lower().replace("n/a", "na"))
    ] = "na"

    def load(self) -> Workload:
        return Workload(
            model=self.model_name,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            num_requests=self.num_requests,
            concurrency=self.concurrent_requests or None,
            qps=self.qps or None,
            qps_distribution=self.qps_distribution,
            image_size=self.multimodal_img_size,
        )


def read_model_configs(path: Path, images_allowed: bool = True) -> tuple[list[Workload], list[str]]:
    """Returns the loads that can run, in the order of the file, and the faults of the others.
    Raises InvalidConfig if none can. `images_allowed` is False if prompts are drawn from several
    texts, which cannot have images."""
    loads: list[Workload] = []
    faults: list[str] = []
    for line, cells in _lines(path):
        found = _row(cells, images_allowed)
        if isinstance(found, Workload):
            loads.append(found)
        else:
            faults += [f"line {line}, {fault}" for fault in found]
    if not loads:
        raise InvalidConfig(path, faults or ["holds no rows"])
    return loads, faults


def _lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Returns the line number and the cells that are not empty, for every row that has any."""
    try:
        text = StringIO(read_bounded(path, MAX_BYTES).decode("utf-8-sig"), newline="")
        reader = csv.DictReader(text, restkey="", restval="")
        _check_header(path, reader.fieldnames or [])
        rows = ((reader.line_num, _written(row)) for row in reader)
        found = list(islice(((line, cells) for line, cells in rows if cells), MAX_ROWS + 1))
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidConfig(path, [str(error)]) from error
    if len(found) > MAX_ROWS:
        raise InvalidConfig(path, [f"has more than {MAX_ROWS} rows; give fewer"])
    return found


def _check_header(path: Path, header: Any) -> None:
    names = [name.strip() for name in header]
    fields = Cells.model_fields
    unknown = [name for name in names if name not in fields]
    faults = [f"column {name!r} is not known; known are {', '.join(fields)}" for name in unknown]
    required = [name for name, field in fields.items() if field.is_required()]
    faults += [f"column {name} is missing" for name in required if name not in names]
    faults += [f"column {name} appears twice" for name, n in Counter(names).items() if n > 1]
    if faults:
        raise InvalidConfig(path, faults)


def _written(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells that are not empty, by column. Cells beyond the header have the name ""."""
    extra = row.pop("", [])
    cells = {name.strip(): value.strip() for name, value in row.items() if value.strip()}
    beyond = ", ".join(value for value in extra if value.strip())
    return cells | ({"": beyond} if beyond else {})


def _row(cells: dict[str, str], images_allowed: bool) -> Workload | list[str]:
    if "" in cells:
        return [f"more cells than columns: {cells['']!r}; quote cells that hold a comma"]
    try:
        row = Cells.model_validate(cells)
    except ValidationError as error:
        return [f"column {fault_of(each, Cells)}" for each in error.errors()]
    faults = []
    if row.concurrent_requests and row.qps:
        faults.append(
            f"columns concurrent_requests={row.concurrent_requests} and qps={row.qps:g}: "
            "a row is either closed or open loop; leave one of them empty or 0"
        )
    if not row.concurrent_requests and not row.qps:
        faults.append("columns concurrent_requests and qps: both are empty or 0; set one of them")
    if row.multimodal_img_size != "na" and not images_allowed:
        faults.append(
            f"column multimodal_img_size={row.multimodal_img_size}: not with "
            "use_multiple_prompts; set it to na or use one prompt"
        )
    return faults or row.load()
