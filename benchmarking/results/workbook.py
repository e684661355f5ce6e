"""Writes the consolidated workbook: one sheet, one line per row of the run, columns as documented.

It is made from the documented files, so it can be made again, also for another client's run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, TYPE_FORMULA, TYPE_STRING

from benchmarking.analysis.switching import batch_of
from benchmarking.errors import InvalidResults, writing
from benchmarking.results.responses import Response
from benchmarking.results.result_files import RowResult
from common.files import whole_file

FOUR = ("min", "mean", "p50", "max")
COLUMNS = (
    "uuid",
    "name",
    "model",
    "num_input_tokens",
    "num_output_tokens",
    "num_concurrent_requests",
    "qps",
    "qps_distribution",
    "multimodal_img_size",
    *(f"server_ttft_s_{which}" for which in FOUR),
    *(f"server_end_to_end_latency_s_{which}" for which in FOUR),
    *(f"server_output_token_per_s_{which}" for which in FOUR),
    *(f"acceptance_rate_{which}" for which in ("min", "p50", "max")),
    "server_number_input_tokens_p50",
    "server_number_output_tokens_p50",
    *(f"client_ttft_s_{which}" for which in FOUR),
    *(f"client_end_to_end_latency_s_{which}" for which in FOUR),
    *(f"client_output_token_per_s_{which}" for which in FOUR),
    "client_total_output_throughput",
    "num_requests_started",
    "num_completed_requests",
    "num_completed_requests_per_min",
    "number_errors",
    "error_code_frequency",
    "switching_time",
    "requests_grouping",
    "requests_batching",
    "request_batching_frequencies",
    "representative_batch_size",
    "estimated_request_batching_frequencies",
    "estimated_representative_batch_size",
    "client_rates_unusable",
    *(f"tokens_per_step_{which}" for which in ("min", "p50", "max")),
)

Line = dict[str, Any]


def write_workbook(path: Path, rows: Sequence[RowResult]) -> None:
    """Writes the workbook, without columns that are empty in all lines. Raises NotWritable."""
    lines = sorted(map(_line, rows), key=_order)
    shown = [name for name in COLUMNS if any(line.get(name) is not None for line in lines)]
    book = Workbook()
    book.remove(book.worksheets[0])
    sheet = book.create_sheet("Sheet1")
    sheet.append(shown)
    for line in lines:
        sheet.append([_cell(line.get(name)) for name in shown])
        for cell in sheet[sheet.max_row]:
            if cell.data_type == TYPE_FORMULA:  # for example, a model's name that begins with =
                cell.data_type = TYPE_STRING
    with writing():
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft:
            book.save(draft)


def _line(row: RowResult) -> Line:
    line = {_column(key): value for key, value in row.summary.items()}
    switches = [response.get("server_switching_time") for response in row.responses]
    present = [value for value in switches if value is not None]
    try:
        of_responses = batch_columns(row.responses) | {"switching_time": max(present, default=None)}
    except TypeError as error:
        raise InvalidResults(f"{row.stem}: {error} in its responses") from error
    return {
        **line,
        **of_responses,
        "uuid": row.uuid,
        "model": str(line.get("model")).replace(".", "-"),
        "multimodal_img_size": row.image_size,
    }


def batch_columns(responses: Sequence[Response]) -> dict[str, Any]:
    """Returns the columns about batches, from one row's responses in the order in which they ended.

    By the documented estimate, consecutive responses with exactly the same server TTFT ran in a
    batch of the next power of two. It cannot see batches of a server that reports a TTFT for each
    request. If the server reports `batch_size_used`, that is shown, and the estimate beside it.
    """
    succeeded = [response for response in responses if not response.get("error_code")]
    ttfts_s = [response.get("server_ttft_s") for response in succeeded]
    known_s = [ttft_s for ttft_s in ttfts_s if ttft_s is not None]
    sizes = [len(list(same)) for _, same in groupby(known_s)]
    estimated = {
        batch: sum(size for size in sizes if batch_of(size) == batch)
        for batch in sorted({*map(batch_of, sizes)})
    }
    reported = [size for each in succeeded if (size := each.get("batch_size_used")) is not None]
    is_reported = bool(reported) and len(reported) == len(succeeded)
    shown = dict(sorted(Counter(reported).items())) if is_reported else estimated
    return {
        "requests_grouping": sizes,
        "requests_batching": [batch_of(size) for size in sizes],
        "request_batching_frequencies": shown,
        "representative_batch_size": _representative(shown),
        "estimated_request_batching_frequencies": estimated,
        "estimated_representative_batch_size": _representative(estimated),
    }


def _representative(frequencies: Mapping[int, int]) -> int | None:
    """Returns the size with more than half of the weight (requests x size); None if none has it."""
    total = sum(size * count for size, count in frequencies.items())
    heavy = [size for size, count in frequencies.items() if 2 * size * count > total]
    return heavy[0] if heavy else None


def _column(key: str) -> str:
    return key.removeprefix("results_").replace("_quantiles", "").replace("_per_request", "")


def _order(line: Line) -> tuple[Any, ...]:
    keys = ("num_input_tokens", "num_output_tokens", "num_concurrent_requests", "qps")
    numbers = (line.get(key) for key in keys)
    return (line["model"], *(n if isinstance(n, int | float) else 0 for n in numbers))


def _cell(value: Any) -> Any:
    """Returns the value of a cell: lists and dictionaries as text, and texts without characters
    that cells cannot have."""
    text = str(value) if isinstance(value, list | dict) else value
    return ILLEGAL_CHARACTERS_RE.sub("", text) if isinstance(text, str) else text
