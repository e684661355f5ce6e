"""The shipped example against our own server with the embedded model: every file, every column."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openpyxl
import pytest
import requests

from benchmarking.records import Run
from benchmarking.results.result_files import RowResult, read_rows
from benchmarking.results.workbook import COLUMNS
from benchmarking.run_files import read_run
from lab.kit.servers import ROOT, TIMEOUT_S, ServedApi, environment
from tests.benchmarking.results.test_responses import KEYS
from tests.benchmarking.rows.test_run import benchmark, run_of
from tests.forked import served

# What is not there to say of this server: no draft model, no images, no bursts.
UNSAID = {
    "multimodal_img_size",
    "client_rates_unusable",
    *(name for name in COLUMNS if name.startswith(("acceptance", "tokens_per_step"))),
}
OUTPUT_TOKENS = 10


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("bench") / "log") as api:
        yield api


@pytest.fixture(scope="module")
def results(api: ServedApi, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """benchmarking/config.yaml as it is shipped, but written elsewhere, and with short answers."""
    folder = tmp_path_factory.mktemp("results")
    config, models = ROOT / "benchmarking" / "config.yaml", folder / "models.csv"
    table = config.with_name("model_configs_example.csv").read_text()
    models.write_text(table.replace(",50,", f",{OUTPUT_TOKENS},"))
    written = config.read_text().replace("var/benchmarks", str(folder))
    written = written.replace("benchmarking/model_configs_example.csv", str(models))
    (folder / "config.yaml").write_text(written)
    subprocess.run(
        [sys.executable, "-m", "benchmarking", "run", str(folder / "config.yaml")],
        cwd=ROOT,
        env=environment(BENCHMARK_API_BASE=f"{api.url}/v1"),
        check=True,
        timeout=600,
    )
    return folder


@pytest.fixture(scope="module")
def run(results: Path) -> Run:
    (folder,) = (results / "output_files").iterdir()
    return read_run(folder)


@pytest.fixture(scope="module")
def rows(results: Path) -> list[RowResult]:
    (folder,) = (results / "output_files").iterdir()
    return list(read_rows(folder))


def test_every_row_has_its_files_with_every_key_filled(rows: list[RowResult]) -> None:
    assert len(rows) == 6
    for row in rows:
        assert row.summary["results_number_errors"] == 0
        assert row.summary["results_num_completed_requests"] >= 6
        for response in row.responses:
            assert list(response) == KEYS.split()
            empty = {name for name, value in response.items() if value in (None, "")}
            assert empty <= {"error_code", "error_msg", "server_switching_time", "acceptance_rate"}
            assert response["number_input_tokens"] in (100, 500)
            assert response["server_number_output_tokens"] == OUTPUT_TOKENS
            assert response["client_inter_token_latencies_s"][0] >= response["server_ttft_s"]


def test_the_workbook_opens_again_with_every_column_filled(results: Path) -> None:
    (path,) = (results / "consolidated_results").glob("*.xlsx")
    header, *lines = openpyxl.load_workbook(path)["Sheet1"].values
    assert set(COLUMNS) - set(map(str, header)) <= UNSAID | {"switching_time"}
    assert len(lines) == 6
    for line in lines:
        empty = {name for name, value in zip(header, line, strict=True) if value is None}
        closed = {"qps", "qps_distribution"}
        # A client that is starved on a busy machine reads bursts, and says so of the row.
        of_some = {"switching_time", "representative_batch_size", "client_rates_unusable"}
        assert empty - of_some in (closed, {"num_concurrent_requests"})


def test_prompts_have_the_asked_length_in_the_servers_own_tokenizer(
    run: Run, api: ServedApi
) -> None:
    for number, row in enumerate(run.rows):
        for record in run.records_of(number):
            assert record.prompt_tokens == row.load.input_tokens
            assert record.usage is not None
            template_tokens = (record.usage.prompt_tokens or 0) - row.load.input_tokens
            assert 0 < template_tokens < 10
    counted = requests.post(f"{api.url}/v1/tokenize", json={"prompt": ""}, timeout=TIMEOUT_S).json()
    assert counted["count"] == 1  # the token every prompt begins with is part of its length


def test_the_environment_of_the_figures_is_recorded(run: Run) -> None:
    environment = run.environment
    assert "cores" in environment.machine
    assert environment.argv[1:2] == ("run",)
    assert set(environment.versions) >= {"httptools", "uvloop", "tokenizers"}
    assert run.config["llm_api"] == "sncloud"
    for row in run.rows:
        assert row.overhead is not None
        assert 0 < row.overhead.cpu_share < 1


def test_our_own_routes_are_a_target_too(api: ServedApi, tmp_path: Path) -> None:
    config = "llm_api: hearth\nsampling_params: {temperature: 0.5}\n"
    status, output = benchmark(tmp_path, api.url, "hearth-tiny,60,20,4,2,,,", config=config)
    assert status == 0, output
    assert "the server sent no usage" in output
    run = run_of(tmp_path)
    for record in run.records_of(0):
        assert (record.usage, record.prompt_tokens) == (None, 60)
        assert record.completion_tokens
        assert len(record.chunk_tokens) == len(record.chunk_s)
    metrics = json.loads((tmp_path / "out" / "r" / "metrics.json").read_text())
    assert metrics["rows"][0]["num_completed_requests"] == 4


def test_a_model_that_takes_no_images_says_so(api: ServedApi, tmp_path: Path) -> None:
    status, output = benchmark(tmp_path, f"{api.url}/v1", "hearth-tiny,60,20,4,2,,,small")
    assert status == 1
    assert "hearth-tiny does not take images (the server answered ignored: it leaves" in output
