"""The commands beside `run`, as users start them: what they say, write and exit with."""

import asyncio
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarking.analysis.search import Shape
from benchmarking.analysis.switching import switching_matrix
from benchmarking.commands import load_commands, measure_command
from benchmarking.commands.cli import main
from benchmarking.records import Run
from benchmarking.report.fit_files import read_fit
from benchmarking.results.result_files import read_rows
from benchmarking.run_files import append_records, read_run, write_run
from lab.kit import scripted_server
from lab.kit.scripted_server import Script, ScriptedServer, scripted
from lab.kit.servers import ROOT
from tests.benchmarking.made_runs import made_run
from tests.benchmarking.simulated_server import SimulatedServer

pytestmark = pytest.mark.usefixtures("without_pictures", "forked_loads")

QUICK = Script((0.02, 0.005, 0.005), (" a", " b", " c"), {"completion_tokens": 3})
TOKENS = ("--input-tokens", "40", "--output-tokens", "3")


def command(*arguments: str | Path, base: str = "") -> tuple[int, str]:
    """Exit status and everything that was said."""
    environment = {"BENCHMARK_API_BASE": base} if base else {}
    result = CliRunner(env=environment).invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def only_folder(parent: Path) -> Path:
    (folder,) = parent.iterdir()
    return folder


def written(folder: Path, run: Run) -> Path:
    folder.mkdir()
    append_records(folder, run.records)
    write_run(folder, run)
    return folder


def simulated(row_s: float = 0.00016) -> Run:
    server = SimulatedServer(rows=8, row_s=row_s)
    shape = Shape("m", 64, 16)
    loads = [shape.at_concurrency(16, 6), *(shape.at_rate(qps, 4) for qps in (20, 60, 100, 140))]
    return made_run([server.measure(load, i)[1] for i, load in enumerate(loads)], loads)


def test_an_address_is_all_it_takes_to_be_measured_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_command, "SHARES", (0.25, 0.5))
    with scripted({"m": QUICK}) as (_, base):
        rows = ("--max-concurrency", "2", "--seconds", "1", "--output-dir", tmp_path)
        status, output = command(base, *TOKENS, *rows, "--ttft-ms", "10000")
        assert status == 0
        missed = command("measure", base, *TOKENS, *rows, "--model", "m", "--itl-ms", "0.001")[1]
    assert "Meets TTFT ≤ 10000 ms for 95% of requests at every load, up to " in output
    assert "Misses ITL ≤ 0.001 ms for 95% of requests at " in missed
    page = min(tmp_path.iterdir()) / "report.html"
    assert f"report in {page}" in output
    assert output.splitlines()[-1].partition(" up to")[0] in page.read_text()


def test_a_second_run_like_the_first_is_compared_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_command, "SHARES", (0.25, 0.5))
    first, second = tmp_path / "first", tmp_path / "second"
    rows = ("--max-concurrency", "2", "--seconds", "1.3")
    own = ("--seed", "7", "--tokenizer", str(ROOT / "models" / "hearth-tiny"))
    with scripted({"m": QUICK}) as (_, base):
        assert command(base, *TOKENS, *rows, *own, "--output-dir", first)[0] == 0
    before = only_folder(first)
    slower = replace(QUICK, delays_s=(0.04, 0.01, 0.01))
    with scripted({"m": slower}) as (_, base):
        like = ("--like", before, "--model", "m", *rows, *TOKENS, "--output-dir", second)
        status, output = command(base, *like)
    assert status == 0, output
    after = only_folder(second)
    runs = [read_run(folder) for folder in (before, after)]
    assert [row.load for row in runs[0].rows] == [row.load for row in runs[1].rows]
    assert [run.seed for run in runs] == [7, 7]
    assert [run.environment.tokenizer for run in runs] == [own[-1], own[-1]]
    status, output = command("compare", before, after)
    assert "in one of the runs only" not in output
    assert output.count("end-to-end mean, ms") == len(runs[0].rows) == 3
    assert "no earlier run was given" not in (after / "report.html").read_text()


def test_options_that_ask_for_other_loads_than_the_run_to_be_like_are_refused(
    tmp_path: Path,
) -> None:
    run = simulated()
    folder = written(tmp_path / "run", run)
    empty = written(tmp_path / "empty", replace(run, rows=(), records=()))
    (tmp_path / "none").mkdir()
    for like, option, value, had in (
        (folder, "--model", "n", "m"),
        (folder, "--input-tokens", "63", "64"),
        (folder, "--output-tokens", "17", "16"),
        (folder, "--max-concurrency", "8", "16"),
        (folder, "--seconds", "5.0", "4"),
        (folder, "--seed", "3", "7"),
    ):
        status, output = command("http://127.0.0.1:9/v1", "--like", like, option, value)
        fault = f"{option} {value}: the run of --like {like} has {had}; leave {option} out"
        assert (status, fault in output) == (2, True), output
    for like, fault in (
        (empty, "holds no row that was measured; give --like another run"),
        (tmp_path / "none", "run.json'; name the folder of a run"),
        (tmp_path / "nowhere", "does not exist"),
    ):
        status, output = command("http://127.0.0.1:9/v1", "--like", like)
        assert (status, fault in output) == (2, True), output


def test_a_server_without_a_list_has_to_have_its_model_named(tmp_path: Path) -> None:
    with scripted({}) as (_, base):
        status, output = command(base, *TOKENS, "--output-dir", tmp_path)
    assert status == 2
    assert "lists no model; name it with --model" in output
    assert not [*tmp_path.iterdir()]


def test_a_sweep_names_its_knee_and_can_be_repeated_reported_and_compared(tmp_path: Path) -> None:
    with scripted({"m": QUICK}) as (_, base):
        arguments = ("--by", "concurrency", "--max-concurrency", "2", "--requests-each", "3")
        out = ("--seed", "5", "--output-dir", tmp_path / "a")
        status, output = command("sweep", "--model", "m", *arguments, *TOKENS, *out, base=base)
        assert status == 0, output
        folder = only_folder(tmp_path / "a")
        assert command("repeat", folder, "--output-dir", tmp_path / "b", base=base)[0] == 0
        other = ("--seed", "6", "--output-dir", tmp_path / "c")
        assert command("repeat", folder, *other, base=base)[0] == 0
        lost = ("--tokenizer", tmp_path / "lost", "--output-dir", tmp_path / "d")
        refused = command("repeat", folder, *lost, base=base)
    assert refused[0] == 2
    assert "name a folder with tokenizer.json, or 'server'" in refused[1]
    assert "40 input tokens, knee:" in output
    assert "saturated" in output
    again = only_folder(tmp_path / "b")
    assert [read_run(each).seed for each in (again, only_folder(tmp_path / "c"))] == [5, 6]
    assert [row.load for row in read_run(again).rows] == [row.load for row in read_run(folder).rows]
    assert [row.load.concurrency for row in read_run(folder).rows] == [1, 2]
    assert command("report", folder, "--ttft-ms", "50", "--against", again)[0] == 0
    assert "TTFT ≤ 50 ms" in (folder / "report.html").read_text()
    status, output = command("compare", folder, folder)
    assert status == 0
    assert output.count("no difference shown") == 2 * 6


def test_a_sweep_names_the_rates_that_were_too_short_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_commands, "SWEEP_SHARES", (0.5, 1.0))
    arguments = ("--max-concurrency", "1", "--seconds", "1", *TOKENS, "--output-dir", tmp_path)
    with scripted({"m": QUICK}) as (_, base):
        status, output = command("sweep", "--model", "m", *arguments, base=base)
    assert status == 0, output
    assert "40 input tokens, not saturated by any of these loads" in output
    low, high = [row.load.qps for row in read_run(only_folder(tmp_path)).rows if row.load.qps]
    assert f"40 input tokens, too short to tell at {low:.3g}, {high:.3g} requests/s" in output
    assert "raise --seconds" in output


def test_one_model_has_nothing_to_switch_to(tmp_path: Path) -> None:
    status, output = command("switching", "a", "a", "--output-dir", tmp_path)
    assert (status, "at least two models" in output) == (2, True)


def test_repeats_ask_for_the_very_same_loads(tmp_path: Path) -> None:
    arguments = ("--max-concurrency", "1", "--requests-each", "2", "--repeats", "3")
    with scripted({"m": QUICK}) as (_, base):
        status, output = command(
            "sweep", "--model", "m", "--by", "concurrency", *arguments, *TOKENS,
            "--output-dir", tmp_path, base=base,
        )  # fmt: skip
    assert status == 0, output
    loads = [row.load for row in read_run(only_folder(tmp_path)).rows]
    assert loads == loads[:1] * 3


def test_a_capacity_that_no_rate_has_is_no_success(tmp_path: Path) -> None:
    search = ("--ttft-ms", "1", "--start-qps", "20", "--seconds", "1")
    with scripted({"m": QUICK}) as (_, base):
        status, output = command(
            "capacity", "--model", "m", *search, *TOKENS, "--output-dir", tmp_path, base=base
        )
    assert status == 1
    assert "no limit was found for TTFT ≤ 1 ms" in output
    assert [row.load.qps for row in read_run(only_folder(tmp_path)).rows] == [20, 10]


def test_a_server_that_is_not_there_ends_a_sweep_with_its_reason(tmp_path: Path) -> None:
    base = "http://127.0.0.1:9/v1"
    status, output = command("sweep", "--model", "m", "--output-dir", tmp_path, base=base)
    assert status == 2
    assert f"{base}/models does not answer" in output
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_served_ends_a_sweep_with_those_that_are(tmp_path: Path) -> None:
    with scripted({"m": QUICK}) as (server, base):
        status, output = command("sweep", "--model", "n", "--output-dir", tmp_path, base=base)
    assert (status, server.requests) == (2, [])
    assert "serves m, not n" in output


def test_a_fit_is_written_posted_and_predicts(tmp_path: Path, optimizer_url: str) -> None:
    folder = written(tmp_path / "run", simulated())
    status, output = command("fit", folder, "--accelerator", "A100", "--optimizer", optimizer_url)
    assert status == 0, output
    assert "maxBatchSize 8 (from rows), atTokens 16" in output
    found = read_fit(folder)
    assert found is not None
    assert found.decode.slope.value > 0
    (perf,) = json.loads((folder / "perf.json").read_text())["models"]
    assert (perf["name"], perf["acc"]) == ("m", "A100")

    status, output = command("predict", folder, "--optimizer", optimizer_url)
    assert status == 0, output
    assert output.count("| TTFT, ms |") == output.count("| ITL, ms |") == 4
    assert "warning" not in output
    predicted = json.loads((folder / "predict.json").read_text())
    assert [each["outside_measured"] for each in predicted] == [[]] * 4
    assert command("report", folder)[0] == 0
    assert '<section id="fit">' in (folder / "report.html").read_text()


def test_a_fit_takes_the_servers_places_and_asks_for_them_where_nobody_knows(
    tmp_path: Path,
) -> None:
    loads = [Shape("m", 64, 16).at_rate(qps, 4) for qps in (10, 20, 30, 40)]  # nothing waits
    quiet = made_run([SimulatedServer().measure(load, 1)[1] for load in loads], loads)
    telling = replace(quiet, environment=replace(quiet.environment, user_rows=32))
    assert "maxBatchSize 32 (from server)" in command("fit", written(tmp_path / "a", telling))[1]
    folder = written(tmp_path / "b", quiet)
    status, output = command("fit", folder)
    assert (status, "give it as --max-batch-size" in output) == (2, True), output
    status, output = command("fit", folder, "--max-batch-size", "8")
    assert (status, "maxBatchSize 8 (from given)" in output) == (0, True), output


def test_a_prediction_outside_what_was_measured_is_named_with_the_range(
    tmp_path: Path, optimizer_url: str
) -> None:
    fitted = written(tmp_path / "fitted", simulated())
    assert command("fit", fitted)[0] == 0
    loads = [Shape("m", 16, 32).at_rate(2, 20), Shape("m", 64, 16).at_rate(60, 4)]
    server = SimulatedServer(rows=8)
    other = made_run([server.measure(load, 5)[1] for load in loads], loads)
    folder = written(tmp_path / "other", other)
    words = ("predict", folder, "--perf", fitted / "perf.json", "--optimizer", optimizer_url)
    status, output = command(*words)
    assert status == 0, output
    (warning,) = [line for line in output.splitlines() if "warning" in line]
    assert "16 prompt tokens, measured 64 to 64" in warning
    assert "32 output tokens, measured 16 to 16" in warning
    assert "requests/s, measured 2" in warning
    assert "requests in service, measured" in warning
    first, second = json.loads((folder / "predict.json").read_text())
    assert len(first["outside_measured"]) == 4
    assert second["outside_measured"] == []
    (fitted / "fit.json").unlink()
    assert "no fit.json beside the performance data" in command(*words)[1]


def test_a_slower_run_is_called_worse_and_fails(tmp_path: Path) -> None:
    before = written(tmp_path / "before", simulated())
    after = written(tmp_path / "after", simulated(row_s=0.0005))
    status, output = command("compare", before, after)
    assert status == 1
    assert "worse" in output
    assert "better" not in output


def test_a_users_own_prompts_are_sent_once_each(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(b"a picture")
    prompts = tmp_path / "my_prompts.jsonl"
    lines = ({"prompt": "one"}, {"prompt": "see\u2028this", "image_path": f"{tmp_path}/dot.png"})
    prompts.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n")
    options = ("--output-tokens", "3", "--save-texts")
    with scripted({"m": QUICK}) as (server, base):
        status, output = command(
            "custom", prompts, "--model", "m", *options, "--output-dir", tmp_path / "out", base=base
        )
    assert status == 0, output
    _, made, first, (text, image) = (each["messages"][0]["content"] for each in server.requests)
    assert len(made.split()) == 40  # the warm-up
    assert (first, text["text"]) == ("one", "see\u2028this")
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    folder = only_folder(tmp_path / "out")
    run = read_run(folder)
    assert [record.prompt_name for record in run.records_of(0)] == ["line 1", "line 2"]
    assert [record.prompt_tokens for record in run.records_of(0)] == [1, 2]
    (row,) = read_rows(folder)
    assert row.stem.startswith("custom_m_my-prompts_1_stream_")
    assert (row.summary["request_count"], row.summary["sampling_params_max_tokens"]) == (2, 3)
    assert "num_input_tokens" not in row.summary
    (texts,) = folder.glob("*_response_texts.jsonl")
    assert json.loads(texts.read_text().splitlines()[0])["completion"] == " a b c"


def test_every_wrong_line_of_a_file_of_prompts_is_named(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": ""}\n\n{"prompt": "one", "id": 3}\nno json\n{"prompt": "two"}')
    status, output = command("custom", prompts, "--model", "m", base="http://127.0.0.1:9/v1")
    assert status == 2
    assert "line 1, prompt: is empty; give 1 character or more" in output
    assert "line 3, id: is not known; leave it out; known keys: prompt, image_path" in output
    assert "line 4, it is not JSON (expected" in output
    assert "line 5" not in output


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    with scripted({"m": QUICK}) as (_, base):
        for image_path, fault in (
            ("missing.png", "No such file"),
            ("notes.txt", "a local picture"),
        ):
            prompts.write_text(json.dumps({"prompt": "see", "image_path": image_path}))
            options = ("--model", "m", "--output-dir", tmp_path / "out")
            status, output = command("custom", prompts, *options, base=base)
            assert (status, "line 1, image_path" in output, fault in output) == (2, True, True), (
                output
            )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fit",), "choose one with --model"),
        (("fit", "--model", "none"), "0 points"),
        (("predict", "--optimizer", "http://127.0.0.1:9"), "see fit"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], reason: str) -> None:
    run = simulated()
    rows = (replace(run.rows[0], load=replace(run.rows[0].load, model="other")), *run.rows[1:])
    folder = written(tmp_path / "run", replace(run, rows=rows))
    name, *options = arguments
    status, output = command(name, folder, *options)
    assert (status, reason in output) == (2, True), output


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[" * 100_000, "\0", '{"models": [1]}', '{"models": [{"name": "m"}]}']
)
def test_what_is_no_performance_data_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "perf.json").write_text(content)
    optimizer = ("--optimizer", "http://127.0.0.1:9")
    for perf in (tmp_path / "perf.json", Path("/dev/zero"), tmp_path):
        status, output = command("predict", tmp_path, "--perf", perf, *optimizer)
        assert (status, f"{perf}: " in output, "see fit" in output) == (2, True, True), output


@pytest.mark.parametrize(
    "option",
    [("--seconds", "nan"), ("--seconds", "inf"), ("--start-qps", "1e308"),
     ("--input-tokens", "10000001"), ("--output-tokens", "0"), ("--seed", str(2**63))],
)  # fmt: skip
def test_numbers_that_no_load_can_have_are_refused_before_any_is_sent(
    option: tuple[str, str],
) -> None:
    name, value = option
    status, output = command("capacity", "--model", "m", name, value, base="http://127.0.0.1:9")
    assert (status, f"Invalid value for '{name}': " in output) == (2, True), output


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    for name in ("fit", "report"):
        status, output = command(name, tmp_path)
        assert status == 2
        assert "name the folder of a run" in output


class SwitchingServer(ScriptedServer):
    """Brings a model into memory when another was there, which takes a known time."""

    def __init__(self, switch_s: Mapping[tuple[str, str], float], *given: Any) -> None:
        super().__init__(*given)
        self._switch_s = switch_s
        self._resident = ""

    async def _complete(self, script: Script, body: dict[str, Any], writer: Any) -> None:
        loaded, self._resident = self._resident, body["model"]
        switching_s = self._switch_s.get((loaded, self._resident), 0.0)
        await asyncio.sleep(switching_s)
        usage = {"time_to_first_token": 0.02 + switching_s, "switching_time": switching_s}
        await super()._complete(replace(script, usage=usage), body, writer)


def test_the_switching_matrix_of_a_server_with_known_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_s = {("a", "b"): 0.3, ("b", "a"): 0.15}
    made = functools.partial(SwitchingServer, switch_s)
    monkeypatch.setattr(scripted_server, "ScriptedServer", made)
    with scripted({"a": QUICK, "b": QUICK}) as (_, base):
        status, output = command(
            "switching", "a", "b", "--laps", "2", *TOKENS, "--output-dir", tmp_path, base=base
        )
    assert status == 0, output
    assert "a to b: server 0.300 s, estimate 0.300 s" in output
    assert "b to a: server 0.150 s, estimate 0.150 s" in output
    matrix = switching_matrix(read_run(only_folder(tmp_path)))
    assert {pair: switches.by_server_s for pair, switches in matrix.items()} == {
        ("a", "b"): [0.3, 0.3],
        ("b", "a"): [0.15, 0.15, 0.15],
    }
