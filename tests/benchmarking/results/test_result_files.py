"""Names, files and workbook as documented; other clients' files are read as well as ours."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.errors import InvalidResults, NotWritable
from benchmarking.records import Workload
from benchmarking.results.result_files import RowResult, file_stem, read_rows
from benchmarking.results.workbook import COLUMNS, batch_columns, write_workbook

UUID = "12345678-9abc-def0-1234-56789abcdef0"
STEM = f"synthetic_0_Llama-3-3_multimodal_small_100_5_2_stream_{UUID}"
ANSWERED: dict[str, Any] = {
    "error_code": None,
    "error_msg": "",
    "prompt_name": "p",
    "start_time": "12:00:00.000000",
    "end_time": "12:00:02.000000",
    "server_number_input_tokens": 103,
    "server_number_output_tokens": 5,
    "server_number_total_tokens": 108,
    "server_ttft_s": 0.4,
    "switching_time": 1.25,
    "server_end_to_end_latency_s": 1.0,
    "server_output_token_per_s_per_request": 6.0,
    "server_total_tokens_per_s_per_request": 108.0,
    "batch_size_used": 2,
    "acceptance_rate": None,
    "number_input_tokens": 100,
    "number_output_tokens": 5,
    "number_total_tokens": 105,
    "client_ttft_s": 0.5,
    "client_end_to_end_latency_s": 2.0,
    "client_output_token_per_s_per_request": 5.5,
    "client_total_tokens_per_s_per_request": 50.0,
    "client_inter_token_latencies_s": [0.5, 0.2, 0.3],
    "client_mean_inter_token_latency_s": 0.25,
}
FAILED = {"error_code": 500, "error_msg": "broken", "prompt_name": "p"}


def write_other_clients_files(folder: Path) -> None:
    """As an observed client writes them: strings for whole numbers, NaN, an older key."""
    summary = {
        "name": f"{STEM}_summary",
        "model": "Llama-3.3",
        "num_concurrent_requests": 2,
        "results_client_ttft_s_quantiles_p50": 0.5,
        "results_client_ttft_s_stddev": float("nan"),
        "results_server_number_input_tokens_min": "103",
        "results_server_number_input_tokens_quantiles_p50": 103.0,
        "results_error_code_frequency": "{}",
        "num_input_tokens": 100,
        "num_output_tokens": 5,
        "timestamp": 1.7e9,
    }
    (folder / f"{STEM}_summary.json").write_text(json.dumps(summary))
    earlier = ANSWERED | {"start_time": "23:59:59.000000"}
    listed = [FAILED, earlier, ANSWERED | {"start_time": "00:00:00.500000"}]
    (folder / f"{STEM}_individual_responses.json").write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("load", "pattern"),
    [
        (
            Workload("hearth-tiny", 100, 50, 9, concurrency=4),
            "synthetic_0_hearth-tiny_100_50_4_stream",
        ),
        (
            Workload("org/Llama_3.3", 100, 50, 9, qps=10.0, qps_distribution="uniform"),
            "realworkload_0_org-Llama-3-3_100_50_10-0_uniform_stream",
        ),
        (
            Workload("m", 100, 50, 9, concurrency=4, image_size="large"),
            "synthetic_0_m_multimodal_large_100_50_4_stream",
        ),
    ],
)
def test_files_are_named_as_documented(load: Workload, pattern: str) -> None:
    stem = file_stem(load)
    assert stem.startswith(f"{pattern}_")
    assert RowResult(stem, {}, []).uuid == stem.removeprefix(f"{pattern}_")
    assert file_stem(load) != stem


def test_another_clients_files_are_read(tmp_path: Path) -> None:
    write_other_clients_files(tmp_path)
    (row,) = read_rows(tmp_path)
    assert (row.uuid, row.image_size) == (UUID, "small")
    assert row.summary["results_server_number_input_tokens_min"] == 103
    assert row.responses[2]["server_switching_time"] == 1.25


def test_the_workbook_has_the_documented_columns_and_leaves_empty_ones_out(tmp_path: Path) -> None:
    write_other_clients_files(tmp_path)
    write_workbook(tmp_path / "deeper" / "run.xlsx", list(read_rows(tmp_path)))
    header, line = sheet_of(tmp_path / "deeper" / "run.xlsx")
    assert [name for name in COLUMNS if name in header] == list(header)
    cells = dict(zip(header, line, strict=True))
    assert cells == {
        "uuid": UUID,
        "name": f"{STEM}_summary",
        "model": "Llama-3-3",
        "num_input_tokens": 100,
        "num_output_tokens": 5,
        "num_concurrent_requests": 2,
        "multimodal_img_size": "small",
        "client_ttft_s_p50": 0.5,
        "server_number_input_tokens_p50": 103,
        "error_code_frequency": "{}",
        "switching_time": 1.25,
        "requests_grouping": "[2]",
        "requests_batching": "[2]",
        "request_batching_frequencies": "{2: 2}",
        "representative_batch_size": 2,
        "estimated_request_batching_frequencies": "{2: 2}",
        "estimated_representative_batch_size": 2,
    }


def test_lines_are_sorted_by_model_and_shape(tmp_path: Path) -> None:
    shapes = [("b", 100, 4), ("a", 200, 1), ("a", 100, 8), ("a", 100, 2)]
    rows = [
        RowResult(
            f"x{i}",
            {"model": model, "num_input_tokens": tokens, "num_concurrent_requests": concurrency},
            [],
        )
        for i, (model, tokens, concurrency) in enumerate(shapes)
    ]
    write_workbook(tmp_path / "run.xlsx", rows)
    _, *lines = sheet_of(tmp_path / "run.xlsx")
    assert [line[0] for line in lines] == ["x3", "x2", "x1", "x0"]


def test_a_workbook_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="file"):
        write_workbook(tmp_path / "file" / "run.xlsx", [])


def test_names_in_a_workbook_are_text(tmp_path: Path) -> None:
    write_workbook(tmp_path / "run.xlsx", [RowResult("x", {"model": "=1+\0\x0b1"}, [])])
    assert openpyxl.load_workbook(tmp_path / "run.xlsx")["Sheet1"]["B2"].data_type == "s"
    assert ("x", "=1+1") in [line[:2] for line in sheet_of(tmp_path / "run.xlsx")]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=1),
    max_leaves=2,
)


@given(st.sampled_from(["_summary.json", "_individual_responses.json"]), st.data(), ODD)
def test_whatever_another_client_wrote_is_read_or_refused(
    kind: str, data: st.DataObject, value: Any
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_other_clients_files(folder)
        path = folder / f"{STEM}{kind}"
        content = json.loads(path.read_text())
        changed = content if isinstance(content, dict) else content[1]
        changed[data.draw(st.sampled_from(sorted(changed)))] = value
        path.write_text(json.dumps(content))
        with suppress(InvalidResults):
            write_workbook(folder / "run.xlsx", list(read_rows(folder)))


def sheet_of(path: Path) -> list[tuple[Any, ...]]:
    return list(openpyxl.load_workbook(path)["Sheet1"].values)


def ended(ttft_s: float | None, batch: int | None = None) -> dict[str, Any]:
    return {"error_code": None, "server_ttft_s": ttft_s, "batch_size_used": batch}


def test_batches_are_estimated_from_equal_times_to_first_token() -> None:
    found = batch_columns([ended(t) for t in (0.1, 0.1, 0.1, 0.2, 0.1, 0.1)] + [FAILED])
    assert found["requests_grouping"] == [3, 1, 2]
    assert found["requests_batching"] == [4, 1, 2]
    assert found["request_batching_frequencies"] == {1: 1, 2: 2, 4: 3}
    assert found["representative_batch_size"] == 4  # 12 of the 17 that requests times size make


def test_the_servers_word_goes_before_the_estimate_of_batches() -> None:
    found = batch_columns([ended(0.1, 3), ended(0.1, 3), ended(0.2, 1)])
    assert found["request_batching_frequencies"] == {1: 1, 3: 2}
    assert found["representative_batch_size"] == 3
    assert found["estimated_request_batching_frequencies"] == {1: 1, 2: 2}


def test_no_size_is_representative_without_half_of_the_weight() -> None:
    found = batch_columns([ended(0.1, 2), ended(0.2, 1), ended(0.3, 1)])
    assert found["representative_batch_size"] is None


def test_a_summary_without_its_responses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x_summary.json").write_text("{}")
    with pytest.raises(InvalidResults, match=r"x_individual_responses\.json"):
        list(read_rows(tmp_path))
    (tmp_path / "x_individual_responses.json").write_text("[1")
    with pytest.raises(InvalidResults, match=r"x_individual_responses\.json"):
        list(read_rows(tmp_path))


def test_responses_that_are_no_objects_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x_summary.json").write_text("{}")
    (tmp_path / "x_individual_responses.json").write_text("[{}, null]")
    with pytest.raises(InvalidResults, match="not a summary with its responses"):
        list(read_rows(tmp_path))
