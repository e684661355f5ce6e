"""Makes one self-contained HTML page about a run: pictures are inline, the network is not needed.

The verdict comes first. Sections without data are left out; the last line says which and why. The
template has the words and the tables.
"""

from pathlib import Path

from jinja2 import Environment, StrictUndefined

from benchmarking.analysis.compare import compare
from benchmarking.analysis.curve import load_points
from benchmarking.analysis.fit import Fit
from benchmarking.analysis.fit_points import batch_limit
from benchmarking.analysis.goodput import Goodput, Slo, goodput_by_model
from benchmarking.analysis.knee import knee
from benchmarking.analysis.remarks import remarks, verdict
from benchmarking.analysis.switching import switching_matrix
from benchmarking.records import Run
from benchmarking.report import curve_pictures, finding_pictures, request_pictures
from benchmarking.report.svg import to_svg

TEMPLATE = Path(__file__).with_name("report.html")


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
        "about": run.environment,
        "rows": list(zip(curve_pictures.load_labels(points), points, strict=True)),
        "experts": _experts(run, slo),
        "client": run.rows,
        **{name: to_svg(figure, name) for name, figure in figures.items() if figure},
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["percent"] = "{:.1%}".format
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        run=run,
        slo=slo,
        verdict=verdict(points, slo),
        remarks=remarks,
        contents={name: content for name, content in contents.items() if content},
        cdf_lines=curve_pictures.CDF_LINES,
        gantt_requests=request_pictures.GANTT_REQUESTS,
    )


def _experts(run: Run, slo: Slo) -> dict[str, Goodput]:
    ran = [number for number in range(len(run.rows)) if run.records_of(number)]
    measured = [record for number in ran for record in run.records_of(number)]
    began_s = min((run.rows[number].start_s for number in ran), default=0.0)
    duration_s = max((run.rows[number].end_s for number in ran), default=0.0) - began_s
    return goodput_by_model(measured, slo, duration_s) if duration_s > 0 else {}
