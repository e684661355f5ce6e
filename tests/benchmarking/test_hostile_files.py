"""Whatever a file of a run or a fit holds, it is read or refused in a few words."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarking.analysis.compare import compare
from benchmarking.analysis.curve import load_points
from benchmarking.analysis.fit import fit_run
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.remarks import verdict
from benchmarking.analysis.service_curve import Speed, read_speed
from benchmarking.analysis.switching import switching_matrix
from benchmarking.errors import BenchmarkError, InvalidConfig, InvalidResults
from benchmarking.load import user_prompts
from benchmarking.load.user_prompts import load_of
from benchmarking.records import MAX_S, Run
from benchmarking.report.finding_pictures import fit_residuals
from benchmarking.report.fit_files import FIT_FILE, PERF_FILE, read_fit, read_perf, write_fit
from benchmarking.report.page import report_html
from benchmarking.rows import model_configs
from benchmarking.rows.model_configs import Cells, read_model_configs
from benchmarking.rows.run_folder import recompute
from benchmarking.run_files import RAW_FILE, RUN_FILE, append_records, read_run, write_run
from tests.benchmarking.made_runs import made_record, made_run

MOST_WORDS = 2000  # characters of a refusal, besides a folder's name
HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, MAX_S, -1, 0, 10**30, 10**400]),
    st.none() | st.booleans() | st.text(max_size=5),
    st.sampled_from([[], {}, [None], [[1e300]], {"a": 1}, ["x"] * 1000, "9999-12-31T23:59:59Z"]),
)
Step = str | int


def a_run() -> Run:
    rows = [
        [made_record(due_s=0.1 * n, itl_s=0.01 + 0.002 * users, batch=users) for n in range(users)]
        for users in range(1, 7)
    ]
    return made_run(rows)


def places(value: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Yields the path of every value in a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from places(entry, (*path, key))


def changed(text: str, data: st.DataObject) -> bytes:
    """A JSON text with another value somewhere, with a key twice, or cut short."""
    value = json.loads(text)
    *path, last = data.draw(st.sampled_from(sorted(places(value), key=str)))
    part = value
    for step in path:
        part = part[step]
    part[last] = data.draw(HOSTILE)
    text = json.dumps(value)
    match data.draw(st.integers(0, 9)):
        case 0:
            text = text[: data.draw(st.integers(0, len(text)))]
        case 1:
            text = text.replace("{", '{"name": [], ', 1)
    return text.encode(errors="surrogatepass")


def look_at(folder: Path) -> None:
    """Everything that commands compute from a run, without the pictures."""
    run = recompute(folder)
    points = load_points(run)
    verdict(points, Slo(100, 10))
    compare(run, run)
    switching_matrix(run)
    with suppress(BenchmarkError):
        fit_run(run, "m", max_batch_size=8)


def refusal(read: Callable[[], object]) -> str:
    """The words of a refusal; empty if there is none."""
    words = ""
    try:
        read()
    except BenchmarkError as error:
        words = str(error)
    assert len(words) < MOST_WORDS
    return words


@given(st.sampled_from([RUN_FILE, RAW_FILE]), st.data())
def test_whatever_a_run_holds_is_read_or_refused(name: str, data: st.DataObject) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        run = a_run()
        write_run(folder, run)
        append_records(folder, run.records)
        path = folder / name
        first, newline, others = path.read_text().partition("\n") if name == RAW_FILE else (
            path.read_text(), "", ""
        )  # fmt: skip
        path.write_bytes(changed(first, data) + (newline + others).encode())
        refusal(lambda: look_at(folder))


@given(st.binary(max_size=60))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"name": "r"}')
def test_bytes_that_are_no_run_are_refused(content: bytes) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / RUN_FILE).write_bytes(content)
        assert RUN_FILE in refusal(lambda: read_run(folder))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"sent_s": 1e300}, "line 2: sent_s: is 1e+300; give 1000000000 or less."),
        ({"chunk_s": [0.1, -1]}, "line 2: chunk_s[1]: is -1; give 0 or more."),
        ({"row": "x"}, 'line 2: row: is "x"; give an integer.'),
    ],
)
def test_the_line_and_the_field_of_a_wrong_record_are_named(
    tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    run = a_run()
    write_run(tmp_path, run)
    append_records(tmp_path, run.records)
    lines = (tmp_path / RAW_FILE).read_text().splitlines(keepends=True)
    lines[1] = json.dumps(json.loads(lines[1]) | fields) + "\n"
    (tmp_path / RAW_FILE).write_text("".join(lines))
    assert fault in refusal(lambda: read_run(tmp_path))


def test_a_run_at_the_bounds_has_a_report(tmp_path: Path) -> None:
    run = a_run()
    write_run(tmp_path, run)
    append_records(tmp_path, run.records)
    text = (tmp_path / RUN_FILE).read_text()
    for name in ("start_s", "end_s"):
        text = text.replace(f'"{name}": 0.0', f'"{name}": {MAX_S}')
    (tmp_path / RUN_FILE).write_text(text)
    look_at(tmp_path)
    assert "<svg" in report_html(read_run(tmp_path), Slo())


@pytest.fixture(scope="module")
def fit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    write_fit(folder, fit_run(a_run(), "m", max_batch_size=8), "m", "cpu")
    return folder


@given(st.sampled_from([FIT_FILE, PERF_FILE]), st.data())
def test_whatever_a_fit_holds_is_read_or_refused(
    fit_folder: Path, name: str, data: st.DataObject
) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / name
        path.write_bytes(changed((fit_folder / name).read_text(), data))
        if name == PERF_FILE:
            refusal(lambda: read_perf(path))
        elif not refusal(lambda: read_fit(path.parent)):
            fit = read_fit(path.parent)
            assert fit is not None
            fit.lines()
            fit_residuals(fit)


@given(
    st.binary(max_size=60) | HOSTILE.map(lambda value: json.dumps({"decode_ms": value}).encode())
)
def test_whatever_a_report_on_steps_holds_is_read_or_refused(content: bytes) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "speed.json"
        path.write_bytes(content)
        refusal(lambda: read_speed(str(path), Speed).curve().as_json())


@given(st.text(alphabet=',"\n\r\0=mN1\ufeff;é', max_size=80), st.booleans())
def test_whatever_a_table_of_rows_holds_is_read_or_refused(text: str, has_header: bool) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "models.csv"
        path.write_text(",".join(Cells.model_fields) * has_header + "\n" + text, newline="")
        refusal(lambda: read_model_configs(path))


def test_no_more_rows_columns_and_prompts_are_read_than_the_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.csv"
    monkeypatch.setattr(model_configs, "MAX_ROWS", 3)
    path.write_text(",".join(Cells.model_fields) + "\n" + "m,1\n" * 4)
    with pytest.raises(InvalidConfig, match="more than 3 rows; give fewer"):
        read_model_configs(path)
    path.write_text(",".join(f"column{number}" for number in range(200_000)))
    with pytest.raises(InvalidConfig, match="And 199904 more faults"):
        read_model_configs(path)
    path.write_text("x\n" * 1000)
    with pytest.raises(InvalidConfig) as error:
        load_of(path, "m", 8, 1)
    assert len(error.value.faults) == 100
    monkeypatch.setattr(user_prompts, "MAX_LINES", 3)
    with pytest.raises(InvalidConfig, match="has 1001 lines; give 3 or fewer"):
        load_of(path, "m", 8, 1)


def test_a_raw_file_that_is_missing_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, a_run())
    with pytest.raises(InvalidResults, match=RAW_FILE):
        read_run(tmp_path)
    append_records(tmp_path, a_run().records)
    monkeypatch.setattr("benchmarking.run_files.MAX_RAW_BYTES", 40)
    with pytest.raises(InvalidResults, match="more than 40 bytes; shorten it"):
        read_run(tmp_path)
