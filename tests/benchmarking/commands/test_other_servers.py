"""`hearth bench` against servers of others: what it says, writes and keeps to itself."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarking.analysis.remarks import remarks
from benchmarking.commands import measure_command
from benchmarking.commands.cli import main
from benchmarking.records import Run
from benchmarking.results.result_files import read_rows
from benchmarking.run_files import read_run
from lab.kit import scripted_server
from lab.kit.scripted_server import Script, ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("without_pictures", "forked_loads")

QUICK = Script((0.02, 0.02, 0.02), (" a", " b", " c"), {"completion_tokens": 3})
OPTIONS = ("--input-tokens", "40", "--output-tokens", "3", "--max-concurrency", "2")


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_command, "SHARES", (0.5,))


def measured(*arguments: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit status and everything that was said."""
    given = [*map(str, arguments), *OPTIONS, "--seconds", "1"]
    result = CliRunner(env=env).invoke(main, given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def only_run(parent: Path) -> tuple[Run, Path]:
    (folder,) = parent.iterdir()
    return read_run(folder), folder


def test_where_nothing_is_answered_there_is_no_verdict_with_a_rate(tmp_path: Path) -> None:
    with scripted({"m": Script(status=400)}) as (server, base):
        status, output = measured(base, "--output-dir", tmp_path)
    run, folder = only_run(tmp_path)
    number = len(server.requests)
    why = f"Nothing was answered: {number} of {number} failed with 400: as scripted"
    assert (status, output.splitlines()[-1], len(run.rows)) == (1, why, 1)
    page = (folder / "report.html").read_text()
    assert why in page
    for text in (output, page):
        assert not re.search("(Meets|Misses) ", text)


@pytest.mark.parametrize("by", ["rate", "concurrency"])
def test_a_sweep_of_what_is_not_answered_ends_at_once(tmp_path: Path, by: str) -> None:
    with scripted({"m": Script(status=400)}) as (_, base):
        status, output = measured(
            "sweep", "--model", "m", "--by", by, "--output-dir", tmp_path,
            env={"BENCHMARK_API_BASE": base},
        )  # fmt: skip
    assert status == 1, output
    assert re.search(
        "40 input tokens: nothing was answered: .* failed with 400: as scripted", output
    )
    assert len(only_run(tmp_path)[0].rows) == 1


class MixedServer(ScriptedServer):
    """Every third answer is none; the others count ten tokens that do not come."""

    async def _complete(self, script: Script, body: dict[str, Any], writer: Any) -> None:
        number = len(self.requests)
        if number % 12 == 0:
            script = replace(script, texts=(), delays_s=())
        elif number % 12 == 3:
            script = replace(script, ending="error event")
        elif number % 12 == 6:
            script = Script(status=500)
        elif number % 12 == 9:
            writer.write(b"HTTP/1.1 429 -\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
            return
        await super()._complete(script, body, writer)


def test_the_terminal_the_report_and_the_files_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_server, "ScriptedServer", MixedServer)
    details = {"reasoning_tokens": 10}
    hiding = {"completion_tokens": 13, "completion_tokens_details": details}
    with scripted({"m": replace(QUICK, usage=hiding)}) as (_, base):
        status, output = measured(base, "--output-dir", tmp_path)
    assert status == 0  # some were answered
    run, folder = only_run(tmp_path)
    page = (folder / "report.html").read_text()
    metrics = json.loads((folder / "metrics.json").read_text())["rows"]
    summaries = {row.stem: row for row in read_rows(folder)}
    cells = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    for number, row in enumerate(metrics):
        completed, sent = row["num_completed_requests"], row["num_requests_measured"]
        figures = next(
            line for line in output.splitlines() if line.startswith(f"row {number + 1},")
        )
        documented = summaries[row["name"]]
        summary = documented.summary
        assert f"{completed} of {sent} answered" in figures
        assert summary["results_num_completed_requests"] == completed < sent
        assert summary["results_num_requests_started"] == sent
        assert summary["results_error_code_frequency"] == str(
            {code: row["errors_by_code"][code] for code in _codes(documented.responses)}
        )
        assert summary["results_number_output_tokens_max"] == 3
        assert summary["results_client_total_output_throughput"] == pytest.approx(
            3 * completed / row["duration_s"]
        )
        ttft, itl = row["ttft_s"], row["itl_s"]
        assert f"TTFT p50 {1000 * ttft['p50']:.1f} p99 {1000 * ttft['p99']:.1f} ms" in figures
        assert f"ITL p50 {1000 * itl['p50']:.1f} p99 {1000 * itl['p99']:.1f} ms" in figures
        came_s = [r.chunk_s for r in run.records_of(number) if r.failure is None]
        assert itl["mean"] == pytest.approx(fmean((s[-1] - s[0]) / 2 for s in came_s))
        window = row["steady_window"]
        assert f"{window['output_tokens_per_s']:.1f} tokens/s" in figures
        (line,) = [c for c in cells if f"<td>{window['output_tokens_per_s']:.1f}</td>" in c]
        for cell in (
            str(sent),
            f"{window['requests_per_s']:.2f}",
            f"{1000 * ttft['p99']:.4g}",
            f"{1000 * itl['p99']:.4g}",
            f"{1 - completed / sent:.1%}",
        ):
            assert f"<td>{cell}</td>" in line, (cell, line)
        for code, count in row["errors_by_code"].items():
            assert f"  {count} failed with {code}: " in output
            assert f"{count} failed with {code}: " in page
        assert row["hidden_tokens"] == 10 * completed
        assert row["num_waits"] == sum(r.num_waits for r in run.records if r.row == number)
        for remark in remarks([record for record in run.records if record.row == number]):
            assert f"  {remark}\n" in output
            assert remark in page
    for words in ("that the server counts were not sent", "wait 1 times (429 with Retry-After)"):
        assert words in output


def _codes(responses: list[dict[str, Any]]) -> list[str]:
    """In the order in which they came."""
    return list(dict.fromkeys(r["error_code"] for r in responses if r["error_code"]))


@contextmanager
def echoing(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedServer, str]]:
    """A server that repeats the head of a request in the error it answers with."""

    class Echo(ScriptedServer):
        async def _complete(self, script: Script, body: dict[str, Any], writer: Any) -> None:
            text = self.heads[-1].decode().rpartition("X-Gateway")[2]
            scripted_server._reply(writer, 403, {"error": {"message": text}})

    monkeypatch.setattr(scripted_server, "ScriptedServer", Echo)
    with scripted({"m": QUICK}) as served:
        yield served


@pytest.mark.parametrize("form", [("--header", "X-Gateway={}"), ("--header=x-gateway={}",)])
def test_headers_go_with_every_request_and_into_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    secret = "of=the gateway"
    given = [each.format(secret) for each in form]
    monkeypatch.setattr("sys.argv", ["hearth", "bench", *given])
    with echoing(monkeypatch) as (server, base):
        status, output = measured(base, *given, "--header", "a=b", "--output-dir", tmp_path)
    assert status == 1
    assert "403" in output
    assert all(f"\r\nX-Gateway: {secret}\r\n".encode() in head for head in server.heads)
    assert secret not in output
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path
    assert any("***" in argument for argument in only_run(tmp_path)[0].environment.argv)


@pytest.mark.parametrize(
    "header", ["hidden-value", "=hidden-value", "a b=hidden-value", "Host=hidden-value",
               "x=hidden-value\r\ny: z", "x= hidden-value"]
)  # fmt: skip
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(header: str) -> None:
    status, output = measured("http://127.0.0.1:9/v1", "--header", header)
    assert (status, "Invalid value for '--header'" in output) == (2, True), output
    assert "hidden-value" not in output


BASES = ("http://me:hidden@host/v1", "http://hidden@host/v1", "https://host/v1?api_key=hidden")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("place", ["argument", "environment", "config"])
def test_credentials_in_an_address_are_refused_and_not_repeated(
    tmp_path: Path, base: str, place: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"model_configs_path: {tmp_path}/m.csv\napi_base: {base}\n")
    status, output = {
        "argument": lambda: measured(base, "--output-dir", tmp_path / "out"),
        "environment": lambda: measured(
            "sweep", "--model", "m", "--output-dir", tmp_path / "out",
            env={"BENCHMARK_API_BASE": base},
        ),
        "config": lambda: _configured(config),
    }[place]()  # fmt: skip
    assert status == 2
    assert "holds credentials" in output
    assert "BENCHMARK_API_KEY" in output
    assert "--header NAME=VALUE" in output
    assert "hidden" not in output
    assert not (tmp_path / "out").exists()


def _configured(config: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["run", str(config)])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "base", ["http://", "http://host:99999/v1", "http://me:hid/hidden@host", "http://[/"]
)
def test_an_address_that_is_none_is_refused(base: str) -> None:
    status, output = measured(base)
    assert (status, "is no address; give one like http://" in output) == (2, True), output
    assert "hidden" not in output


class PickyServer(ScriptedServer):
    """Knows neither of two fields, and calls a third by another name."""

    async def _answer(self, path: str, body: dict[str, Any], writer: Any) -> bool:
        for name in ("ignore_eos", "stream_options", "max_tokens"):
            if name in body:
                remedy = "use max_completion_tokens" if name == "max_tokens" else ""
                scripted_server._reply(writer, 400, {"detail": f"{name}: unknown {remedy}"})
                return True
        return await super()._answer(path, body, writer)


def test_a_whole_run_leaves_out_what_a_server_refuses_and_keeps_the_query_of_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_server, "ScriptedServer", PickyServer)
    with scripted({"m": QUICK}) as (server, base):
        base += "?api-version=2024-06-01"
        status, output = measured(base, "--output-dir", tmp_path)
    assert status == 0, output
    assert all(b"?api-version=2024-06-01 HTTP/1.1\r\n" in head for head in server.heads)
    agreement = (
        "without ignore_eos, without stream_options, with max_completion_tokens for max_tokens"
    )
    assert output.count(f"the server refuses some fields of requests: {agreement}") == 1
    run, folder = only_run(tmp_path)
    assert run.environment.target == f"openai {base}, {agreement}"
    assert agreement in (folder / "report.html").read_text()
    assert {tuple(body) for body in server.requests} == {
        ("model", "messages", "max_completion_tokens", "stream")
    }
