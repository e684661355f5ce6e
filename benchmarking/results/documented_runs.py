"""Reads the documented files of any client as a `Run`.

These files do not say when a request was due, nor how many tokens an event had. A request counts as
due when it was sent, and an event counts as one token.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmarking.errors import InvalidResults, unreadable
from benchmarking.records import (
    Environment,
    RequestError,
    RequestRecord,
    RowRecord,
    Run,
    Workload,
)
from benchmarking.results.responses import CLOCK_FORMAT, SERVER_KEYS, Response
from benchmarking.results.result_files import SUMMARY, RowResult, read_rows
from benchmarking.run_files import RUN_FILE

DAY_S = timedelta(days=1).total_seconds()
_LOAD, _RECORD = TypeAdapter(Workload), TypeAdapter(RequestRecord)
UNKNOWN = Environment("unknown", {}, (), "unknown", "unknown")


def imported_run(folder: Path) -> Run:
    """Returns a run with rows in the order of their files' names. Raises InvalidResults."""
    rows, records, started = [], [], []
    for number, result in enumerate(read_rows(folder)):
        try:
            of_row = _records(number, result)
            rows.append(_row(result, of_row))
            started.append(datetime.fromtimestamp(rows[-1].timestamp).astimezone())
        except ValidationError as error:
            raise unreadable(folder / result.stem, error) from error
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            raise InvalidResults(f"{folder / result.stem}: {error!r} in its files") from error
        records += of_row
    if not rows:
        raise InvalidResults(
            f"{folder} holds no results ({RUN_FILE}, or *{SUMMARY}); name the folder of a run"
        )
    return Run(folder.name, min(started), 0, UNKNOWN, {}, tuple(rows), tuple(records))


def _row(result: RowResult, records: Sequence[RequestRecord]) -> RowRecord:
    summary = result.summary
    load = _asked_tokens(result, records) | {
        "model": summary["model"],
        "num_requests": len(records),
        "concurrency": summary.get("num_concurrent_requests"),
        "qps": summary.get("qps"),
        "qps_distribution": summary.get("qps_distribution", "constant"),
        "image_size": result.image_size or "na",
    }
    return RowRecord(
        load=_LOAD.validate_python(load),
        name=result.stem,
        start_s=min(record.sent_s for record in records),
        end_s=max(record.end_s for record in records),
        timestamp=float(summary["timestamp"]),
    )


def _asked_tokens(result: RowResult, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Returns the requested token counts. For a user's own prompts they follow from the responses,
    because the summary does not have them."""
    summary = result.summary
    if "num_input_tokens" in summary:
        return {
            "input_tokens": summary["num_input_tokens"],
            "output_tokens": summary["num_output_tokens"],
        }
    answered = [record for record in records if record.failure is None]
    longest = max((record.completion_tokens or 0 for record in answered), default=0)
    return {
        "input_tokens": round(fmean(record.prompt_tokens or 0 for record in answered or records)),
        "output_tokens": summary.get("sampling_params_max_tokens", longest),
        "prompts_path": result.stem.split("_")[2],
    }


def _records(number: int, result: RowResult) -> list[RequestRecord]:
    model = str(result.summary["model"])
    timed = zip(_sent_s(result.responses), result.responses, strict=True)
    in_order = sorted(timed, key=lambda pair: pair[0])
    return [
        _record(number, index, model, sent_s, response)
        for index, (sent_s, response) in enumerate(in_order)
    ]


def _record(
    number: int, index: int, model: str, sent_s: float, response: Response
) -> RequestRecord:
    took_s = response.get("client_end_to_end_latency_s") or 0.0
    code = response.get("error_code")
    gaps_s = response.get("client_inter_token_latencies_s", [])
    record = {
        "row": number,
        "index": index,
        "model": model,
        "prompt_name": str(response.get("prompt_name", "")),
        "scheduled_s": sent_s,
        "sent_s": sent_s,
        "end_s": sent_s + took_s,
        "chunk_s": tuple(accumulate(gaps_s, initial=sent_s))[1:],
        "prompt_tokens": response.get("number_input_tokens"),
        "completion_tokens": response.get("number_output_tokens"),
        "usage": None if code else _usage(response),
        "error": RequestError(str(code), str(response.get("error_msg", ""))) if code else None,
    }
    return _RECORD.validate_python(record)


def _usage(response: Response) -> dict[str, Any]:
    return {name: response.get(key) for key, name in SERVER_KEYS.items()} | {
        "tokens_per_step": response.get("tokens_per_step"),
        "acceptance_by_depth": response.get("acceptance_by_depth") or (),
    }


def _sent_s(responses: Sequence[Response]) -> list[float]:
    """Returns when each request was sent, in seconds of the day. The files have no dates: requests
    more than half a day before others were sent after midnight. A failure may have no time; it
    counts as sent first."""
    clocks = [response.get("start_time", "") for response in responses]
    since_s = [_since_midnight_s(clock) if clock else None for clock in clocks]
    known_s = [at_s for at_s in since_s if at_s is not None]
    first_s, last_s = min(known_s, default=0.0), max(known_s, default=0.0)
    if last_s - first_s > DAY_S / 2:
        since_s = [None if s is None else s + DAY_S * (s < DAY_S / 2) for s in since_s]
        first_s = min(at_s for at_s in since_s if at_s is not None)
    return [first_s if at_s is None else at_s for at_s in since_s]


def _since_midnight_s(clock: str) -> float:
    return (datetime.strptime(clock, CLOCK_FORMAT) - datetime(1900, 1, 1)).total_seconds()
