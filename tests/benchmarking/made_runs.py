"""Records and runs made by hand, for tests of what is computed from them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from benchmarking.records import (
    Environment,
    RequestError,
    RequestRecord,
    RowRecord,
    Run,
    ServerUsage,
    Workload,
)

ENVIRONMENT = Environment("a machine", {"hearth": "1"}, ("sweep",), "openai http://x", "server")


def made_record(
    *,
    model: str = "m",
    due_s: float = 0.0,
    late_s: float = 0.0,
    ttft_s: float = 0.1,
    itl_s: float = 0.01,
    tokens: int = 11,
    prompt_tokens: int = 100,
    server_ttft_s: float = 0.1,
    queue_s: float | None = None,
    switching_s: float | None = None,
    batch: int | None = None,
    acceptance: float | None = None,
    error: str | None = None,
    is_warmup: bool = False,
) -> RequestRecord:
    """A request sent `late_s` after it was due whose first token came `ttft_s` after that."""
    sent_s = due_s + late_s
    chunk_s = () if error else tuple(sent_s + ttft_s + itl_s * i for i in range(tokens))
    usage = ServerUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        ttft_s=server_ttft_s,
        queue_s=queue_s,
        batch_size_used=batch,
        acceptance_rate=acceptance,
        switching_time_s=switching_s,
    )
    return RequestRecord(
        row=0,
        index=0,
        model=model,
        prompt_name="p",
        scheduled_s=due_s,
        sent_s=sent_s,
        end_s=chunk_s[-1] if chunk_s else sent_s + ttft_s,
        chunk_s=chunk_s,
        usage=None if error else usage,
        error=RequestError(error, "made") if error else None,
        is_warmup=is_warmup,
    )


def made_run(
    rows: Sequence[Sequence[RequestRecord]],
    loads: Sequence[Workload] | None = None,
    name: str = "made",
) -> Run:
    """Each list of records as one row of its own, lasting from its first due time to its end."""
    placed = [
        replace(record, row=row, index=index)
        for row, records in enumerate(rows)
        for index, record in enumerate(records)
    ]
    loads = loads or [Workload(records[0].model, 100, 11, len(records), 1) for records in rows]
    row_records = [
        RowRecord(
            load,
            f"row{row}",
            start_s=min(record.scheduled_s for record in records),
            end_s=max(record.end_s for record in records),
            timestamp=1.7e9,
        )
        for row, (load, records) in enumerate(zip(loads, rows, strict=True))
    ]
    started_at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return Run(name, started_at, 7, ENVIRONMENT, {}, tuple(row_records), tuple(placed))
