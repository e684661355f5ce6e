"""`python -m benchmarking run` as users start it: files, failures, exit codes, Ctrl-C."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from click.testing import CliRunner

from benchmarking.commands.cli import main
from benchmarking.records import Run
from benchmarking.results.result_files import RowResult, read_rows
from benchmarking.run_files import read_run
from lab.kit.scripted_server import Script, Stall, scripted
from lab.kit.servers import ROOT, TIMEOUT_S, eventually, free_port
from tests.benchmarking.rows.test_config import HEADER

pytestmark = pytest.mark.usefixtures("forked_loads")

SECRET = "sk-not-for-files"
TINY = ROOT / "models" / "hearth-tiny"
USAGE: Mapping[str, Any] = {
    "prompt_tokens": 42,
    "completion_tokens": 4,
    "total_tokens": 46,
    "time_to_first_token": 0.09,
    "total_latency": 0.2,
    "completion_tokens_after_first_per_sec": 25.0,
    "total_tokens_per_sec": 230.0,
    "completion_tokens_after_first_per_sec_first_ten": 25.5,
    "batch_size_used": 2,
    "acceptance_rate": 0.75,
    "switching_time": 0.0,
}
# 0.1 s to the first token, 0.05 s to each of the two other events, of which one has two tokens.
KNOWN = Script((0.1, 0.05, 0.05), ("one", " two three", " four"), USAGE)


def configured(tmp_path: Path, base: str, *lines: str, config: str = "") -> str:
    """Write both files; the path of the first."""
    (tmp_path / "models.csv").write_text("\n".join([HEADER, *lines]))
    (tmp_path / "config.yaml").write_text(
        f"model_configs_path: {tmp_path}/models.csv\n"
        f"output_files_dir: {tmp_path}/out\n"
        f"consolidated_results_dir: {tmp_path}/books\n"
        f"run_name: r\napi_base: {base}\n{config}"
    )
    return str(tmp_path / "config.yaml")


def benchmark(tmp_path: Path, base: str, *lines: str, config: str = "") -> tuple[int, str]:
    """Exit status and everything that was said."""
    path = configured(tmp_path, base, *lines, config=config)
    return command("run", path)


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"BENCHMARK_API_KEY": SECRET}).invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def run_of(tmp_path: Path) -> Run:
    return read_run(tmp_path / "out" / "r")


def only_row(tmp_path: Path) -> RowResult:
    (row,) = read_rows(tmp_path / "out" / "r")
    return row


def book_line(tmp_path: Path) -> dict[str, Any]:
    sheet = openpyxl.load_workbook(tmp_path / "books" / "r.xlsx")["Sheet1"]
    header, line = sheet.values
    return {str(name): value for name, value in zip(header, line, strict=True)}


def test_rates_and_latencies_equal_a_hand_computed_case(tmp_path: Path) -> None:
    """The server's delays are known; a busy machine adds to them."""
    with scripted({"m": KNOWN}) as (server, base):
        status, output = benchmark(tmp_path, base, "m,40,4,6,2,,,", config="seed: 3")
    assert (status, len(server.requests)) == (0, 2 + 6), output
    row = only_row(tmp_path)
    assert len(row.summary) == 158
    response = row.responses[0]
    gaps_s = response["client_inter_token_latencies_s"]
    for number, known_s in enumerate((0.1, 0.15, 0.2), start=1):
        came_s = [sum(r["client_inter_token_latencies_s"][:number]) for r in row.responses]
        assert known_s <= min(came_s) <= response["client_end_to_end_latency_s"]
    assert response["client_ttft_s"] == gaps_s[0]  # one token in the first event
    total_s = response["client_end_to_end_latency_s"]
    assert response["client_output_token_per_s_per_request"] == pytest.approx(
        (4 - 1) / (total_s - gaps_s[0])
    )
    assert response["client_total_tokens_per_s_per_request"] == pytest.approx((40 + 4) / total_s)
    assert response["number_total_tokens"] == 40 + 4
    of_server = row.summary["results_server_ttft_s_quantiles_p50"]
    assert of_server == 0.09
    run = run_of(tmp_path)
    duration_s = run.rows[0].end_s - run.rows[0].start_s
    assert duration_s >= 3 * 0.2  # three rounds of two
    assert row.summary["results_client_total_output_throughput"] == 6 * 4 / duration_s
    assert row.summary["results_num_completed_requests_per_min"] == 60 * (6 / duration_s)
    line = book_line(tmp_path)
    assert (line["representative_batch_size"], line["acceptance_rate_p50"]) == (2, 0.75)
    assert line["switching_time"] == 0
    assert [record.chunk_tokens for record in run.records_of(0)] == [(1, 2, 1)] * 6
    assert sum(record.is_warmup for record in run.records) == 2
    assert (run.seed, run.environment.target) == (3, f"openai {base}")
    prompts = [request["messages"][0]["content"] for request in server.requests]
    assert len({prompt.split()[1] for prompt in prompts}) == 8  # a prefix of its own each
    assert {len(prompt.split()) for prompt in prompts} == {40}


def test_what_drafts_brought_is_in_every_file(tmp_path: Path) -> None:
    of_drafts = {"tokens_per_step": 2.5, "acceptance_by_depth": [0.75, 0.25]}
    drafting = replace(KNOWN, usage={**USAGE, **of_drafts})
    with scripted({"m": drafting}) as (_, base):
        status, output = benchmark(tmp_path, base, "m,40,4,2,2,,,")
    assert status == 0, output
    row = only_row(tmp_path)
    assert all(response.items() >= of_drafts.items() for response in row.responses)
    assert row.summary["results_tokens_per_step_mean"] == 2.5
    assert book_line(tmp_path)["tokens_per_step_p50"] == 2.5
    (metrics,) = json.loads((tmp_path / "out" / "r" / "metrics.json").read_text())["rows"]
    assert (metrics["acceptance_rate_mean"], metrics["tokens_per_step_mean"]) == (0.75, 2.5)
    for record in run_of(tmp_path).records_of(0):
        assert record.usage is not None
        assert record.usage.acceptance_by_depth == (0.75, 0.25)
        assert record.usage.tokens_per_step == 2.5


def test_the_reported_p99_shows_a_stall_of_the_server(tmp_path: Path) -> None:
    stalled = Script((0.01,), ("one",), USAGE)
    with scripted({"m": stalled}, Stall(at_s=0.3, for_s=1.0)) as (_, base):
        status, output = benchmark(
            tmp_path, base, "m,40,1,20,,20,constant,", config="warmup_requests: 0"
        )
    assert status == 0, output
    (row,) = json.loads((tmp_path / "out" / "r" / "metrics.json").read_text())["rows"]
    assert row["ttft_s"]["p99"] > 0.9  # due every 50 ms, the first of them just as it began


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(("burst", "is_usable"), [(1, True), (2, True), (12, False)])
def test_a_row_whose_tokens_arrive_in_bursts_marks_its_rates(
    tmp_path: Path, burst: int, is_usable: bool
) -> None:
    script = Script((0.02,) * 24, (" word",) * 24, {"completion_tokens": 24}, burst=burst)
    with scripted({"m": script}) as (_, base):
        status, output = benchmark(tmp_path, base, "m,40,24,3,1,,,", config="warmup_requests: 0")
    assert status == 0, output
    folder = tmp_path / "out" / "r"
    (metrics,) = json.loads((folder / "metrics.json").read_text())["rows"]
    assert command("report", str(folder))[0] == 0
    page = (folder / "report.html").read_text()
    assert ("ITL p50" in output) == is_usable == (metrics["itl_s"] is not None)
    reasons = (
        metrics["client_rates_unusable"],
        only_row(tmp_path).summary.get("client_rates_unusable"),
        book_line(tmp_path).get("client_rates_unusable"),
    )
    if is_usable:
        assert reasons == (None, None, None)
        assert "unusable" not in output + page
    else:
        (reason,) = set(reasons)
        assert "12.0 in one network read on average (96% with the one before)" in str(reason)
        assert f"client rates unusable: {reason}" in output
        assert page.count("<td>unusable</td>") == 2
        assert "tokens came in bursts, 12.0 in one network read" in page


def test_the_key_reaches_the_server_and_no_file(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (server, base):
        status, output = benchmark(tmp_path, base, "m,40,4,1,1,,,")
    assert status == 0
    assert all(f"Authorization: Bearer {SECRET}\r\n".encode() in head for head in server.heads)
    assert SECRET not in output
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_everything_is_computed_again_from_the_raw_files(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (_, base):
        benchmark(tmp_path, base, "m,40,4,3,,20,exponential,")
    folder = tmp_path / "out" / "r"
    raw = {"run.json", "raw.jsonl"}
    derived = {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in raw}
    for name in derived:
        (folder / name).unlink()
    assert command("recompute", str(folder)) == (0, f"1 rows in {folder}\n")
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in raw} == derived
    assert len(derived) == 4  # summary, responses, metrics.json and metrics.csv


def test_failures_are_recorded_by_status_and_other_rows_go_on(tmp_path: Path) -> None:
    scripts = {
        "down": Script(status=500),
        "breaks": Script((0.0,), ("one",), USAGE, ending="broken"),
        "noise": Script((0.0,), ("one",), USAGE, ending="malformed"),
        "silent": Script((0.0, 0.1), ("one", " two")),
        "m": KNOWN,
    }
    with scripted(scripts) as (_, base):
        lines = [f"{name},40,4,2,1,,," for name in scripts]
        status, output = benchmark(tmp_path, base, *lines)
    assert status == 1
    run = run_of(tmp_path)
    codes = {
        name: {record.error.code if record.error else None for record in run.records_of(row)}
        for row, name in enumerate(scripts)
    }
    assert codes == {
        "down": {"500"},
        "breaks": {"connection"},
        "noise": {"protocol"},
        "silent": {None},
        "m": {None},
    }
    assert "2 failed with 500: as scripted" in output
    assert "the server sent no usage" in output
    by_model = {row.summary["model"]: row for row in read_rows(tmp_path / "out" / "r")}
    assert by_model["down"].summary["results_error_code_frequency"] == "{'500': 2}"
    silent = by_model["silent"]
    assert silent.responses[0]["server_ttft_s"] is None
    assert silent.responses[0]["number_output_tokens"] == 2  # as the client counts
    assert (tmp_path / "books" / "r.xlsx").exists()


@pytest.mark.parametrize("tokenizer", ["server", str(TINY)])
def test_a_server_that_is_down_is_named_once_with_how_to_go_on(
    tmp_path: Path, tokenizer: str
) -> None:
    base = f"http://127.0.0.1:{free_port()}/v1"
    lines = ("m,40,4,1,1,,,", "n,40,4,1,1,,,")
    status, output = benchmark(tmp_path, base, *lines, config=f"tokenizer: {tokenizer}")
    assert status == 2
    assert output.splitlines() == [
        f"benchmarking: {base}/models does not answer ([Errno 111] Connection refused); "
        "start the server, or set BENCHMARK_API_BASE"
    ]
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_served_is_named_once_and_the_other_rows_go_on(tmp_path: Path) -> None:
    with scripted({"m": KNOWN, "n": KNOWN}) as (server, base):
        lines = ("typo,40,4,1,1,,,", "typo,50,4,1,1,,,", "m,40,4,1,1,,,")
        status, output = benchmark(tmp_path, base, *lines)
    fault = f"{base}/models answered 200 and serves m, n, not typo; correct the name of the model"
    assert (status, output.count("typo")) == (1, 1), output
    assert f"{fault}; its rows are skipped" in output
    assert {request["model"] for request in server.requests} == {"m"}
    assert run_of(tmp_path).config["refused_rows"] == [fault]


def test_no_model_that_is_served_ends_with_2_and_one_line(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (_, base):
        status, output = benchmark(tmp_path, base, "typo,40,4,1,1,,,")
    assert (status, len(output.splitlines())) == (2, 1), output
    assert "serves m, not typo" in output


def test_the_servers_user_rows_are_kept_with_the_run(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (server, base):
        server.user_rows = 7
        benchmark(tmp_path, base, "m,40,4,1,1,,,")
    assert run_of(tmp_path).environment.user_rows == 7


def test_a_row_that_does_not_fit_the_context_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    with scripted({"m": KNOWN}) as (server, base):
        status, output = benchmark(tmp_path, base, "m,4000,200,1,1,,,", "m,40,4,1,1,,,")
    assert status == 1
    assert "a prompt of 4000 tokens leaves room for 94 tokens" in output
    assert len(server.requests) == 2  # of the other row, and its warm-up


def test_a_wrong_row_is_left_out_and_told_by_the_exit_code(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (_, base):
        status, output = benchmark(tmp_path, base, "m,12,4,1,1,,,", "m,40,4,1,1,,,")
    assert status == 1
    assert 'line 2, column input_tokens: is "12"' in output
    assert "1 of 1 answered" in output
    assert 'input_tokens: is "12"' in str(run_of(tmp_path).config["refused_rows"])


def test_images_go_to_models_that_take_them_and_others_say_so(tmp_path: Path) -> None:
    scripts = {"sees": KNOWN, "blind": Script((0.0,), ("one",), USAGE, takes_images=False)}
    with scripted(scripts) as (server, base):
        lines = ("blind,40,4,1,1,,,small", "sees,40,4,1,1,,,small")
        status, output = benchmark(tmp_path, base, *lines)
    assert status == 1
    assert "blind does not take images (the server answered 400: messages.0.content" in output
    assert "set it to na" in output
    text, image = server.requests[-1]["messages"][0]["content"]
    assert len(text["text"].split()) == 40
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert book_line(tmp_path)["multimodal_img_size"] == "small"


@pytest.mark.parametrize("folder", ["output_files_dir", "consolidated_results_dir"])
def test_a_folder_that_cannot_be_written_stops_before_anything_is_sent(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    with scripted({"m": KNOWN}) as (server, base):
        path = Path(configured(tmp_path, base, "m,40,4,1,1,,,"))
        lines = [line for line in path.read_text().splitlines() if folder not in line]
        path.write_text("\n".join([*lines, f"{folder}: {tmp_path}/file/in"]))
        status, output = command("run", str(path))
    assert (status, server.requests) == (2, [])
    assert "choose a folder that can be written" in output


def test_a_config_that_cannot_be_used_ends_with_2(tmp_path: Path) -> None:
    status, output = benchmark(tmp_path, "http://x", "m,40,4,1,1,,,", config="tymeout: 3")
    assert status == 2
    assert "tymeout: is not known (did you mean timeout?)" in output


def test_checking_sends_nothing(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (server, base):
        path = configured(tmp_path, base, "m,40,4,1,1,,,")
        assert command("run", path, "--check") == (0, "1 rows can be run\n")
    assert server.requests == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_writes_what_was_measured(tmp_path: Path, signum: signal.Signals) -> None:
    scripts = {"m": KNOWN, "slow": Script((60.0,), ("late",), USAGE)}
    with scripted(scripts) as (server, base):
        lines = ("m,40,4,2,1,,,", "slow,40,4,5,2,,,", "m,40,4,2,1,,,")
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarking", "run", configured(tmp_path, base, *lines)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        eventually(lambda: any(request["model"] == "slow" for request in server.requests))
        process.send_signal(signum)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "stopping: what was measured is being written" in output
    run = run_of(tmp_path)
    assert len(run.records_of(0)) == 2
    assert run.records_of(1) == []
    assert run.rows[1].was_interrupted
    assert run.rows[2].error == "was not run"
    assert book_line(tmp_path)["num_completed_requests"] == 2


def test_a_terminal_shows_how_far_a_run_is_and_the_figures_so_far(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    termios.tcsetwinsize(its_end, (24, 120))
    with scripted({"m": replace(KNOWN, delays_s=(0.8, 0.06, 0.06)), "n": KNOWN}) as (_, base):
        arguments = ["run", configured(tmp_path, base, "m,40,4,2,1,,,", "n,40,4,1,1,,,")]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarking", *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=its_end,
        )
        os.close(its_end)
        pieces: list[bytes] = []
        with suppress(OSError):  # nobody writes to it any more
            while True:
                pieces.append(os.read(terminal, 65536))
        os.close(terminal)
        assert process.wait(TIMEOUT_S) == 0
    shown = b"".join(pieces).decode()
    assert "| 1/2 [" in shown  # rows
    figures = r"(.+?)/s, 1 running, 0 failed, (.+?) tokens/s, TTFT (.+?) ms, ITL (.+?) ms, m "
    found = re.search(f"row 1: 2/3, {figures}", shown)
    assert found, shown
    per_s, tokens_per_s, ttft_ms, itl_ms = map(float, found.groups())
    assert 0 < per_s <= 1.1  # a request takes at least 0.92 s
    assert tokens_per_s == pytest.approx(4 * per_s, abs=1)  # both are rounded
    assert ttft_ms >= 800
    assert ttft_ms + 3 * itl_ms > 919  # to the last of four tokens


def test_rows_may_run_at_once(tmp_path: Path) -> None:
    scripts = {"a": KNOWN, "b": KNOWN}
    with scripted(scripts) as (_, base):
        config = "concurrency_enabled: true\nmax_workers: 2\nwarmup_requests: 0"
        lines = ("a,40,4,20,1,,,", "b,40,4,20,1,,,")
        status, output = benchmark(tmp_path, base, *lines, config=config)
    assert status == 0, output
    first, second = run_of(tmp_path).rows
    assert max(first.start_s, second.start_s) < min(first.end_s, second.end_s)


def test_texts_are_kept_when_asked_for(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (_, base):
        config = "save_response_texts: true\nuse_multiple_prompts: true"
        benchmark(tmp_path, base, "m,40,4,3,1,,,", config=config)
    (path,) = (tmp_path / "out" / "r").glob("*_response_texts.jsonl")
    texts = [json.loads(line) for line in path.read_text().splitlines()]
    assert [text["completion"] for text in texts] == ["one two three four"] * 3
    assert len({record.prompt_name for record in run_of(tmp_path).records}) > 1


def test_the_same_prompt_may_be_sent_again_and_again(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (server, base):
        benchmark(tmp_path, base, "m,40,4,3,1,,,", config="unique_prefix: false")
    assert len({request["messages"][0]["content"] for request in server.requests}) == 1
