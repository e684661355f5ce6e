"""`hearth plan`, `python -m optimizer.plan`: how many accelerators, at what cost, and why.

It runs the optimizer's query `questions.how_many` in this process, so no server is needed.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np

from common.files import read_bounded
from common.numerics import FloatArray
from common.plain_yaml import plain_json, plain_value
from common.processes import printing
from optimizer.candidates.replicas import SizingCache
from optimizer.catalogue.facts import Precision, shipped_facts
from optimizer.errors import InvalidRequest
from optimizer.inferno_json import encode, read
from optimizer.questions.how_many import Choice, HowMany, HowManyQuery, Range, how_many
from optimizer.questions.trace import Peak, file_fault, read_trace

MOST_BYTES = 2**20  # largest file that is read
LONG_MS = 10_000
HEADINGS = (
    "accelerator", "replicas", "cards", "$/h", "rows busy", "TTFT ms", "ITL ms", "memory", "speed"
)  # fmt: skip

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
BELOW = click.FloatRange(0, 1e9, min_open=True)


@click.command()
@click.option("--model", required=True, help="A model in the catalogue, such as llama-3.1-8b.")
@click.option(
    "--rate", type=click.FloatRange(0, 1e7, min_open=True), help="Requests per second; or --trace."
)
@click.option(
    "--trace",
    type=FILE,
    help="CSV of requests (arrival_s, input_tokens, output_tokens): answer for its peaks.",
)
@click.option(
    "--peak",
    "peak_s",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds that a peak of the trace lasts.",
)
@click.option("--ttft", type=BELOW, help="Target for the mean TTFT in ms, including queueing.")
@click.option("--itl", type=BELOW, help="Target for the mean ITL in ms.")
@click.option("--input-tokens", type=click.IntRange(0, 10**7), default=512, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1, 10**7), default=256, show_default=True)
@click.option(
    "--precision",
    type=click.Choice([p.value for p in Precision]),
    help="Precision of the weights; default: as published.",
)
@click.option(
    "--accelerator", "accelerators", multiple=True, help="Consider only these; may be repeated."
)
@click.option(
    "--max-cards", type=click.IntRange(1, 10**6), help="Maximum number of cards of one type."
)
@click.option(
    "--prices", type=FILE, help="YAML or JSON: dollars per card and hour, by accelerator."
)
@click.option(
    "--perf",
    "perfs",
    type=FILE,
    multiple=True,
    help="Your measurements: perf.json of a fit, or GET /speed with one --accelerator.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the answer of POST /howmany, and the peaks of a trace.",
)
def main(
    accelerators: tuple[str, ...],
    prices: Path | None,
    perfs: tuple[Path, ...],
    trace: Path | None,
    peak_s: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Say how many accelerators MODEL needs at a rate and service levels, and at what cost.

    Speeds are fitted to published measurements or estimated from datasheets, with their errors;
    what you measured replaces them.
    """
    if (options["rate"] is None) == (trace is None):
        raise click.UsageError("Give either --rate or --trace.")
    try:
        cache, trace_text, extra = SizingCache(), list[str](), dict[str, Any]()
        if trace is None:
            answer = how_many(_query(accelerators, prices, perfs, options), cache)
        else:
            requests = read_trace(trace, peak_s)
            peaks = requests.peaks(peak_s)
            answers = []
            for peak in peaks:
                options["rate"] = peak["arrivalRate"] / 60
                options["input_tokens"] = peak["avgInTokens"]
                options["output_tokens"] = max(peak["avgOutTokens"], 1.0)
                answers.append(how_many(_query(accelerators, prices, perfs, options), cache))
            answer, extra = at_all_peaks(answers), {"peaks": peaks}
            trace_text = [*trace_lines(requests.arrival_s, peak_s, peaks), ""]
    except InvalidRequest as error:
        raise click.ClickException(str(error)) from error
    click.echo(encode(extra | answer) if as_json else "\n".join([*trace_text, *lines(answer)]))
    if not answer["choices"]:
        raise SystemExit(1)


def at_all_peaks(answers: Sequence[HowMany]) -> HowMany:
    """Returns the answer for the peak that costs most. It lists the accelerators that meet the
    levels at all peaks, each as its most expensive peak needs it."""
    by_name = [{each["accelerator"]: each for each in answer["choices"]} for answer in answers]
    names = [name for name in by_name[0] if all(name in each for each in by_name)]
    worst = [max((each[name] for each in by_name), key=itemgetter("cost")) for name in names]
    choices = sorted(worst, key=itemgetter("cost"))
    holds = [choices[0] in each["choices"] if choices else not each["choices"] for each in answers]
    decides = answers[holds.index(True) if True in holds else 0]
    refused = {each["accelerator"]: each for answer in answers for each in answer["notChosen"]}
    return decides | {"choices": choices, "notChosen": [refused[name] for name in sorted(refused)]}


def trace_lines(arrival_s: FloatArray, peak_s: float, peaks: Iterable[Peak]) -> Iterable[str]:
    """Yields the size of a trace and the load of each peak, line by line."""
    yield f"{len(arrival_s)} requests in {arrival_s[-1]:g} s; the peaks of {peak_s:g} s:"
    for peak in peaks:
        rate, tokens = peak["arrivalRate"] / 60, (peak["avgInTokens"], peak["avgOutTokens"])
        yield (
            f"  most {', '.join(peak['of'])}: from {peak['start']:.0f} s, {rate:.4g} requests/s of "
            f"{tokens[0]:.0f} + {tokens[1]:.0f} tokens"
        )


def _query(
    accelerators: Sequence[str], prices: Path | None, perfs: Sequence[Path], options: dict[str, Any]
) -> HowManyQuery:
    """Raises InvalidRequest."""
    query = {
        "model": options["model"],
        "arrivalRate": 60 * options["rate"],
        "slo-ttft": options["ttft"],
        "slo-itl": options["itl"],
        "avgInTokens": options["input_tokens"],
        "avgOutTokens": options["output_tokens"],
        "precision": options["precision"],
        "maxCards": options["max_cards"],
        "accelerators": list(accelerators),
        "prices": _prices(prices) if prices else {},
        "measured": [
            perf for path in perfs for perf in _measured(path, options["model"], accelerators)
        ],
    }
    return read(HowManyQuery, query)


def _prices(path: Path) -> dict[str, float]:
    value = _content(path)
    if not isinstance(value, dict) or not all(
        isinstance(price, int | float) and not isinstance(price, bool) for price in value.values()
    ):
        raise file_fault(path, "give dollars per card and hour by accelerator, such as `h100: 2.5`")
    try:
        return {str(name): 100.0 * price for name, price in value.items()}
    except OverflowError as error:
        raise file_fault(path, str(error)) from error


def _measured(path: Path, model: str, accelerators: Sequence[str]) -> Iterable[Any]:
    """Returns performance data from a fit, or from a server's measured step times."""
    value = _content(path)
    if isinstance(value, dict) and isinstance(value.get("models"), list):
        return list(value["models"])
    costs = _step_costs(value)
    if costs is None:
        raise file_fault(
            path, "it has neither `models`, as perf.json has, nor `decode_ms`, as GET /speed"
        )
    if len(accelerators) != 1:
        raise file_fault(path, "step costs do not say of what: name it with one --accelerator")
    return [{"name": model, "acc": accelerators[0], "serviceCurve": _curve(path, costs)}]


def _step_costs(value: Any) -> dict[str, Any] | None:
    """Returns the step times of a server with one model, given directly or under its name."""
    if isinstance(value, dict) and "decode_ms" not in value and len(value) == 1:
        (value,) = value.values()
    return value if isinstance(value, dict) and "decode_ms" in value else None


def _curve(path: Path, costs: dict[str, Any]) -> dict[str, Any]:
    """Returns a service curve with distinct whole numbers of rows, and times that never fall."""
    try:
        points = {
            name: {max(round(row), 1): (float(ms), float(error)) for row, ms, error in costs[name]}
            for name in ("decode_ms", "prefill_ms_per_token")
        }
        decode = sorted(points["decode_ms"].items())
        rising = np.maximum.accumulate([ms for _, (ms, _) in decode]).tolist()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise file_fault(
            path, f"step costs are lists of [rows, ms, standard error]: {error}"
        ) from error
    return {
        "decodeMs": [
            {"rows": rows, "ms": ms, "standardError": measured[1]}
            for (rows, measured), ms in zip(decode, rising, strict=True)
        ],
        "promptTokenMs": [
            {"rows": rows, "ms": ms, "standardError": error}
            for rows, (ms, error) in sorted(points["prefill_ms_per_token"].items())
        ],
    }


def _content(path: Path) -> Any:
    try:
        raw = read_bounded(path, MOST_BYTES)
        if path.suffix == ".json":
            return plain_json(raw)
        return plain_value(raw.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise file_fault(path, str(error)) from error


def lines(answer: HowMany) -> Iterable[str]:
    """Yields the answer as text, line by line."""
    yield (
        f"{answer['model']} in {answer['precision']}, {answer['arrivalRate'] / 60:.4g} requests/s "
        f"of {answer['avgInTokens']} + {answer['avgOutTokens']} tokens"
    )
    if answer["choices"]:
        yield ""
        yield from _table([HEADINGS, *(_row(choice) for choice in answer["choices"])])
    else:
        yield from _unmet(answer)
    for title, texts in (
        ("What would change it", [change["text"] for change in answer["changes"]]),
        ("Not chosen", [f"{n['accelerator']}: {n['reason']}" for n in answer["notChosen"]]),
        ("Where the speeds are from", list(_sources(answer["choices"]))),
        ("Keep in mind", answer["notes"]),
    ):
        if texts:
            yield from ("", title, *(f"  {text}" for text in texts))


def _unmet(answer: HowMany) -> Iterable[str]:
    yield "Nothing in the catalogue meets these levels."
    if nearest := answer["nearest"]:
        yield (
            f"The nearest, {nearest['accelerator']}, does TTFT {nearest['ttftAverage']:.3g} ms and "
            f"ITL {nearest['itlAverage']:.3g} ms when idle: ask for more than that."
        )


def _row(choice: Choice) -> tuple[str, ...]:
    memory, speed = choice["memory"], choice["speed"]
    per_replica = "" if choice["cardsPerReplica"] == 1 else f" x{choice['cardsPerReplica']}"
    return (
        choice["accelerator"] + per_replica,
        _with_range(choice["numReplicas"], choice["replicasRange"], "{:.0f}"),
        str(choice["cards"]),
        _with_range(choice["cost"], choice["costRange"], "{:.2f}", 100),
        f"{choice['utilization']:.0%}",
        _with_range(choice["ttftAverage"], choice["ttftRange"], "{:.0f}"),
        _with_range(choice["itlAverage"], choice["itlRange"], "{:.1f}"),
        f"{_gb(memory['weights'])} + {choice['maxBatch']} x {_gb(memory['ofRequest'])} GB",
        f"{speed['kind']} ±{speed['error']:.0%}" + " *" * speed["promptsEstimated"],
    )


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.3g}"


def _with_range(value: float, bounds: Range, form: str, unit: float = 1) -> str:
    low, high = form.format(bounds["low"] / unit), bounds["high"]
    upper = "over"
    if high is not None and high / unit <= max(LONG_MS, value / unit):
        upper = form.format(high / unit)
    text = form.format(value / unit)
    return text if low == text == upper else f"{text} ({low}–{upper})"


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _sources(choices: Iterable[Choice]) -> Iterable[str]:
    titles = {each.name: each.title for each in shipped_facts().accelerators.values()}
    for choice in choices:
        speed = choice["speed"]
        if speed["kind"] == "fitted":
            points = "1 point" if speed["points"] == 1 else f"{speed['points']} points"
            prompts = "; * its prompts are estimated" if speed["promptsEstimated"] else ""
            yield (
                f"{titles[choice['accelerator']]}: fitted to what was published of "
                f"{', '.join(speed['engines'])}, {points}{prompts}"
            )
            yield from (f"  {source}" for source in speed["sources"])
        elif speed["kind"] == "measured":
            yield f"{titles[choice['accelerator']]}: your measurement, in place of the catalogue's"


if __name__ == "__main__":
    with printing():
        main()
