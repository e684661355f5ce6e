"""The documented files of a run: names and writes them, and reads those of any client.

Other clients of this format may write numbers as strings, write NaN, or leave out keys.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarking.errors import InvalidResults
from benchmarking.records import Workload
from benchmarking.results.responses import Response
from benchmarking.results.summary import METRICS, MODEL_IDX, Summary
from common.files import read_bounded, write_whole

MAX_BYTES = 2**31
SUMMARY, RESPONSES, TEXTS = "_summary.json", "_individual_responses.json", "_response_texts.jsonl"
UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
IMAGE_MARK = "multimodal"


@dataclass(frozen=True, slots=True)
class RowResult:
    """The two files of one row, written by any client."""

    stem: str
    summary: Summary
    responses: list[Response]

    @property
    def uuid(self) -> str:
        found = UUID.search(self.stem)
        return found[0] if found else self.stem

    @property
    def image_size(self) -> str | None:
        """The size of the images, which is only in the file's name; None without images."""
        fields = self.stem.split("_")
        return fields[fields.index(IMAGE_MARK) + 1] if IMAGE_MARK in fields else None


def file_stem(load: Workload) -> str:
    """Returns the beginning of a row's file names, as documented, with a new uuid."""
    model = load.model.replace("_", "-")
    if load.prompts_path is not None:
        prompts = Path(load.prompts_path).stem.replace("_", "-")
        return _stem(["custom", model, prompts, load.concurrency or load.qps])
    kind = "synthetic" if load.concurrency else "realworkload"
    fields: list[object] = [kind, MODEL_IDX, model]
    fields += [IMAGE_MARK, load.image_size] if load.image_size != "na" else []
    fields += [load.input_tokens, load.output_tokens]
    if load.concurrency:
        return _stem([*fields, load.concurrency])
    return _stem([*fields, round(load.qps or 0.0, 4), load.qps_distribution])


def _stem(fields: Sequence[object]) -> str:
    stem = "_".join(map(str, [*fields, "stream", uuid4()]))
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).replace("--", "-")


def write_row(folder: Path, stem: str, summary: Summary, responses: Sequence[Response]) -> None:
    for end, content in ((SUMMARY, summary), (RESPONSES, responses)):
        path = folder / (stem + end)
        try:
            text = json.dumps(content, indent=4, ensure_ascii=False, allow_nan=False)
        except ValueError as error:  # NaN in the configuration of another client's run
            raise InvalidResults(f"{path}: {error}") from error
        write_whole(path, text + "\n")


def write_texts(folder: Path, stem: str, texts: Sequence[tuple[str, str]]) -> None:
    """Writes the prompt and completion of every completed request, one per line."""
    lines = (
        json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False) + "\n"
        for prompt, completion in texts
    )
    write_whole(folder / (stem + TEXTS), "".join(lines))


def read_rows(folder: Path) -> Iterator[RowResult]:
    """Yields every row in `folder`, in the order of its files' names. Raises InvalidResults."""
    for path in sorted(folder.glob(f"*{SUMMARY}")):
        stem = path.name.removesuffix(SUMMARY)
        summary, responses = _read_json(path), _read_json(folder / (stem + RESPONSES))
        is_list = isinstance(responses, list) and all(isinstance(r, dict) for r in responses)
        if not isinstance(summary, dict) or not is_list:
            raise InvalidResults(f"{path}: not a summary with its responses")
        for each in responses:
            if "switching_time" in each:  # the name in older documentation
                each["server_switching_time"] = each.pop("switching_time")
        yield RowResult(stem, _as_numbers(summary), responses)


def _as_numbers(summary: Summary) -> Summary:
    """Returns the summary with numbers, where some clients write least and largest as strings."""
    metrics = tuple(f"results_{metric}" for metric in METRICS)
    return {
        key: float(value)
        if isinstance(value, str) and key.startswith(metrics) and NUMBER.fullmatch(value)
        else value
        for key, value in summary.items()
    }


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidResults(f"{path}: {error}") from error
