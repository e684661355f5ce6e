"""Makes lines for the terminal about a row that has ended. Pure."""

from collections.abc import Iterator

from benchmarking.analysis.remarks import remarks
from benchmarking.records import Run, Workload
from benchmarking.results.responses import responses
from benchmarking.results.row_metrics import Metrics, row_metrics
from benchmarking.results.summary import results


def row_lines(run: Run, number: int, with_statistics: bool) -> Iterator[str]:
    """Yields lines about a row; `with_statistics` adds every documented statistic."""
    row = run.rows[number]
    title = f"row {number + 1}, {_shape(row.load)}"
    if row.error is not None:
        yield f"{title}: {row.error}"
        return
    records = run.all_of(number)
    metrics = row_metrics(row, records)
    yield f"{title}: {_figures(metrics)}"
    for remark in remarks(records):
        yield f"  {remark}"
    if row.was_interrupted:
        yield "  interrupted: these are the requests that had ended by then"
    if metrics["num_completed_requests"] and all(record.usage is None for record in records):
        yield "  the server sent no usage: its columns stay empty"
    if fault := metrics["client_rates_unusable"]:
        yield f"  client rates unusable: {fault}"
    if metrics["is_client_bottleneck"]:
        lag_ms = _ms(metrics["client"]["lag_p99_s"])
        yield f"  the client may have been what was slow: its timers came {lag_ms} ms late (p99)"
    if with_statistics:
        listed = responses(run.records_of(number), run.started_at)
        for name, value in results(listed, row.end_s - row.start_s).items():
            yield f"  {name}: {value}"


def _shape(load: Workload) -> str:
    rate = f"{load.concurrency} at once"
    if not load.concurrency:
        rate = f"{load.qps:.4g} per second ({load.qps_distribution})"
    prompts = f"{load.prompts_path}, " if load.prompts_path else ""
    return f"{load.model}, {prompts}{load.input_tokens} + {load.output_tokens} tokens, {rate}"


def _figures(metrics: Metrics) -> str:
    parts = [f"{metrics['num_completed_requests']} of {metrics['num_requests_measured']} answered"]
    for name, label in (("ttft_s", "TTFT"), ("itl_s", "ITL")):
        if spread := metrics[name]:
            parts.append(f"{label} p50 {_ms(spread['p50'])} p99 {_ms(spread['p99'])} ms")
    if window := metrics["steady_window"]:
        parts.append(f"{window['output_tokens_per_s']:.1f} tokens/s")
    if client := metrics["client"]:
        parts.append(f"client {client['cpu_share']:.1%} of a core")
        if client["stolen_share"]:
            parts.append(f"host took {client['stolen_share']:.1%}")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
