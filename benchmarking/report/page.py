"""One self-contained HTML page about a run: every picture inline, nothing from the network.

The verdict comes first. Sections without data are left out; the last line says which and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from benchmarking.analysis.compare import RowChange, compare
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

Table = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    title: str
    note: str
    absence: str = ""  # why it is empty, if it is
    facts: Sequence[tuple[str, str]] = ()
    table: Table = field(default_factory=list)
    svg: str = ""

    @property
    def has_data(self) -> bool:
        return bool(self.facts or self.table or self.svg)


def report_html(run: Run, slo: Slo, fit: Fit | None = None, before: Run | None = None) -> str:
    """Returns the page. `before`: an earlier run to compare with."""
    points = load_points(run)
    changes = compare(before, run) if before else []
    sections = [
        _about(run, slo),
        _rows(points, slo),
        *_curves(points, slo),
        _experts(run, slo),
        *_requests(run, points),
        *_findings(run, fit, changes),
        _client(run),
    ]
    shown = [section for section in sections if section.has_data]
    missing = [section for section in sections if not section.has_data]
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(TEMPLATE.read_text()).render(
        run=run, verdict=verdict(points, slo), sections=shown, missing=missing
    )


def _about(run: Run, slo: Slo) -> Section:
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
    note = (
        "Latencies count from the moment a request was due. Brackets and bars are 95 % intervals."
    )
    return Section("about", "What was measured", note, facts=facts)


def _rows(points: Sequence[LoadPoint], slo: Slo) -> Section:
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
    note = "Rates hold while the load was held, without warm-up and drain."
    facts = [(label, remark) for label, point in labelled for remark in remarks(point.all_records)]
    facts += [
        (f"unusable: {label}", point.burst_fault) for label, point in labelled if point.burst_fault
    ]
    absence = "no request was recorded."
    return Section("rows", "Rows", note, absence, facts=facts, table=_table(head, body))


def _spread_cells(spread: Spread | None, absence: str = "") -> tuple[str, str]:
    return (str(spread.mean), f"{spread.percentile(99):.4g}") if spread else (absence, absence)


def _curves(points: Sequence[LoadPoint], slo: Slo) -> list[Section]:
    return [
        _picture(
            "throughput-latency",
            "Throughput and latency",
            "The ring is the knee: the greatest throughput over latency. Dashed: service level.",
            "no request was answered.",
            curve_pictures.throughput_latency(points, slo),
        ),
        _picture(
            "bands",
            "Percentile bands",
            "Of the shape measured at most loads.",
            "it takes two loads of one shape.",
            curve_pictures.percentile_bands(points),
        ),
        _picture(
            "goodput",
            "Goodput",
            "Requests within their service levels. The dotted line is a server that keeps up.",
            "no row offered requests at a rate.",
            curve_pictures.goodput_over_load(points, slo),
        ),
        _picture(
            "cdf",
            "Latency distributions",
            f"Requests answered within a time, in up to {curve_pictures.CDF_LINES} rows.",
            "no request was answered.",
            curve_pictures.latency_cdf(points),
        ),
    ]


def _experts(run: Run, slo: Slo) -> Section:
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
    note = "Of each expert over the whole run, under the traffic of all."
    return Section(
        "experts", "Goodput per expert", note, "no request was recorded.", table=_table(head, body)
    )


def _requests(run: Run, points: Sequence[LoadPoint]) -> list[Section]:
    return [
        _picture(
            "gantt",
            "Requests in time",
            f"The first {request_pictures.GANTT_REQUESTS} requests at the knee. The queue is the "
            "server's word (usage.queue_time), or inferred: first come, first served, over the "
            "places the server was seen to have.",
            "no request was answered.",
            request_pictures.gantt(knee(points), batch_limit(run)),
        ),
        _picture(
            "time-series",
            "The run in time",
            "Vertical lines are the beginnings of rows. Warm-up is included.",
            "no request was answered.",
            request_pictures.time_series(run),
        ),
        _picture(
            "batches",
            "By batch size",
            "Medians with p5 to p95 by the batch size the server reports; here all times count "
            "from sending.",
            "the server reports no batch size.",
            request_pictures.batch_bars(run.records),
        ),
    ]


def _findings(run: Run, fit: Fit | None, changes: Sequence[RowChange]) -> list[Section]:
    return [
        _picture(
            "comparison",
            "Comparison",
            "Change against the earlier run; green is better, orange worse, grey not shown.",
            "no earlier run was given, or it has no load in common with this one.",
            finding_pictures.comparison(changes),
        ),
        _picture(
            "switching",
            "Switching times",
            "Mean extra wait when a request for another model comes; the first visits are warm-up.",
            "the rows never came back to a model.",
            finding_pictures.switching_times(switching_matrix(run)),
        ),
        _picture(
            "acceptance",
            "Acceptance rate",
            "Draft tokens accepted of those proposed, and tokens that a step brought; boxes are "
            "quartiles, whiskers p5 to p95.",
            "the server reports none: it serves without a draft.",
            finding_pictures.acceptance(run),
        ),
        _picture(
            "fit",
            "Fitted speeds",
            "ITL = α + β n and prefill = γ + δ k n, with what they leave unexplained.",
            "nothing was fitted; see the fit command.",
            finding_pictures.fit_residuals(fit) if fit else None,
        ),
    ]


def _client(run: Run) -> Section:
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
    note = (
        "What the client's own process took: it must not be what limits the load. And what the "
        "host of a virtual machine took from all on it, in parts of a core: rows that differ in "
        "it cannot be compared."
    )
    return Section("client", "The client itself", note, "no row was run.", table=_table(head, body))


def _stolen(row: RowRecord) -> str:
    share = row.overhead.stolen_share if row.overhead else None
    return "" if share is None else f"{share:.1%}"


def _picture(id_: str, title: str, note: str, absence: str, figure: Figure | None) -> Section:
    svg = to_svg(figure, id_) if figure is not None else ""
    return Section(id_, title, note, absence, svg=svg)


def _table(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> Table:
    return [head, *body] if body else []
