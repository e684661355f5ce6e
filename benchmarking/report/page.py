"""Makes one self-contained HTML page about a run: pictures are inline, the network is not needed.

The verdict comes first. Sections without data are left out; the last line says which and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from benchmarking.analysis.compare import compare
from benchmarking.analysis.curve import LoadPoint, Spread, load_points
from benchmarking.analysis.fit import Fit
from benchmarking.analysis.fit_points import batch_limit
from benchmarking.analysis.goodput import Slo, goodput_by_model
from benchmarking.analysis.knee import knee
from benchmarking.analysis.remarks import remarks, verdict
from benchmarking.analysis.switching import switching_matrix
from benchmarking.records import RowRecord, Run
from benchmarking.report import curve_pictures, finding_pictures, request_pictures
from benchmarking.report.svg import to_svg

TEMPLATE = Path(__file__).with_name("report.html")

Table = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a section. Its title and texts are in the template."""

    facts: Sequence[tuple[str, str]] = ()
    table: Table = ()
    svg: str = ""

    def __bool__(self) -> bool:
        return bool(self.facts or self.table or self.svg)


def report_html(run: Run, slo: Slo, fit: Fit | None = None, before: Run | None = None) -> str:
    """Returns the page. `before` is an earlier run to compare with."""
    points = load_points(run)
    figures = {
        "throughput-latency": curve_pictures.throughput_latency(points, slo),
        "bands": curve_pictures.percentile_bands(points),
        "goodput": curve_pictures.goodput_over_load(points, slo),
        "cdf": curve_pictures.latency_cdf(points),
        "gantt": request_pictures.gantt(knee(points), batch_limit(run)),
        "time-series": request_pictures.time_series(run),
        "batches": request_pictures.batch_bars(run.records),
        "comparison": finding_pictures.comparison(compare(before, run) if before else []),
        "switching": finding_pictures.switching_times(switching_matrix(run)),
        "acceptance": finding_pictures.acceptance(run),
        "fit": finding_pictures.fit_residuals(fit) if fit else None,
    }
    contents = {
        "about": _about(run, slo),
        "rows": _rows(points, slo),
        "experts": _experts(run, slo),
        "client": _client(run),
        **{name: Content(svg=to_svg(figure, name)) for name, figure in figures.items() if figure},
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        run=run,
        verdict=verdict(points, slo),
        contents={name: content for name, content in contents.items() if content},
        cdf_lines=curve_pictures.CDF_LINES,
        gantt_requests=request_pictures.GANTT_REQUESTS,
    )


def _about(run: Run, slo: Slo) -> Content:
    environment = run.environment
    facts = [
        ("started", run.started_at.isoformat(timespec="seconds")),
        ("target", environment.target),
        ("machine", environment.machine),
        ("versions", ", ".join(f"{name} {v}" for name, v in environment.versions.items())),
        ("command", " ".join(environment.argv)),
        ("seed", str(run.seed)),
        ("tokenizer", environment.tokenizer),
        ("service levels", str(slo)),
    ]
    return Content(facts)


def _rows(points: Sequence[LoadPoint], slo: Slo) -> Content:
    head = (
        "load",
        "requests",
        "in flight",
        "requests/s",
        "tokens/s",
        "TTFT mean ms",
        "TTFT p99 ms",
        "ITL mean ms",
        "ITL p99 ms",
        "good",
        "failed",
    )
    labelled = list(zip(curve_pictures.load_labels(points), points, strict=True))
    body = [
        (
            label,
            str(len(point.measured)),
            f"{point.in_flight:.1f}",
            f"{point.throughput_per_s:.2f}",
            f"{point.tokens_per_s:.1f}",
            *_spread_cells(point.ttft),
            *_spread_cells(point.itl, "unusable" if point.burst_fault else ""),
            f"{point.goodput(slo).attainment:.1%}",
            f"{point.error_share:.1%}",
        )
        for label, point in labelled
    ]
    facts = [(label, remark) for label, point in labelled for remark in remarks(point.all_records)]
    facts += [
        (f"unusable: {label}", point.burst_fault) for label, point in labelled if point.burst_fault
    ]
    return Content(facts, _table(head, body))


def _spread_cells(spread: Spread | None, absence: str = "") -> tuple[str, str]:
    return (str(spread.mean), f"{spread.percentile(99):.4g}") if spread else (absence, absence)


def _experts(run: Run, slo: Slo) -> Content:
    ran = [number for number in range(len(run.rows)) if run.records_of(number)]
    measured = [record for number in ran for record in run.records_of(number)]
    began_s = min((run.rows[number].start_s for number in ran), default=0.0)
    duration_s = max((run.rows[number].end_s for number in ran), default=0.0) - began_s
    found = goodput_by_model(measured, slo, duration_s) if duration_s > 0 else {}
    head = ("model", "good requests/s", "share of its requests")
    body = [
        (model, f"{good.requests_per_s:.3f}", f"{good.attainment:.1%}")
        for model, good in found.items()
    ]
    return Content(table=_table(head, body))


def _client(run: Run) -> Content:
    head = (
        "row",
        "CPU of a core",
        "timer late p99 ms",
        "timer late max ms",
        "taken by the host",
        "error",
    )
    body = [
        (
            row.name,
            f"{row.overhead.cpu_share:.1%}" if row.overhead else "",
            f"{1000 * row.overhead.lag_p99_s:.3g}" if row.overhead else "",
            f"{1000 * row.overhead.lag_max_s:.3g}" if row.overhead else "",
            _stolen(row),
            row.error or "",
        )
        for row in run.rows
    ]
    return Content(table=_table(head, body))


def _stolen(row: RowRecord) -> str:
    share = row.overhead.stolen_share if row.overhead else None
    return "" if share is None else f"{share:.1%}"


def _table(head: tuple[str, ...], body: Table) -> Table:
    return [head, *body] if body else []
