"""Replicas of other engines than Hearth: real processes behind a real proxy."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from benchmarking.commands.cli import main
from cluster.actuators.local import LocalMachine, records_in
from cluster.actuators.tended import TendedReplicas, Times
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.config import read_config
from cluster.controller.cycle import ControllerParts, Planner
from cluster.controller.demand import between
from cluster.controller.optimizer import OptimizerClient
from cluster.controller.pages import PageReader
from cluster.engines import ENGINES, HEARTH, Counters, Engine
from cluster.replicas import Recipes
from lab.kit.scripted_server import Script, scripted
from lab.kit.servers import TIMEOUT_S, eventually
from lab.peers.install import PREBUILT_LLAMA
from tests.cluster.asking import ready
from tests.cluster.fleet import CountingReader, system_json
from tests.cluster.foreign_engine import PAGES, TOKEN_S, command_of
from tests.cluster.test_scaling import GROUP, NUM_CLIENTS, answered_by, clear, loaded
from tests.proxy.support import bearer, running_proxy
from tests.service import ROOT

TIMES = Times(probe_s=0.2, leave_s=3, drain_s=60)
MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextmanager
def tending(folder: Path, engine: Engine, settings: dict[str, str]) -> Iterator[TendedReplicas]:
    """An actuator of one server that runs this engine."""
    recipes = Recipes({"chat": settings}, {"core": {"CPU": 1}}, {"chat": engine})
    machine = LocalMachine(folder / "replicas", {"CPU": 3})
    actuator = TendedReplicas(machine, recipes, UpstreamsFile(folder / "upstreams.yaml"), TIMES)
    try:
        yield actuator
    finally:
        actuator.close()
        clear(LocalMachine(folder / "replicas"))


@pytest.mark.parametrize("name", PAGES)
def test_no_request_is_lost_with_an_engine_that_cuts_them_off_on_sigterm(
    tmp_path: Path, name: str
) -> None:
    engine = replace(ENGINES[name], command=tuple(command_of(name).split()))
    reader = PageReader(None, {"chat": engine})
    with tending(tmp_path, engine, {"PYTHONPATH": str(ROOT)}) as actuator:
        before = reader.read(ready(actuator, GROUP, 2))
        upstreams = str(tmp_path / "upstreams.yaml")
        with loaded(tmp_path, UPSTREAMS_FILE=upstreams) as (proxy, load):
            eventually(lambda: len(answered_by(proxy)) == 2)
            actuator.stop(GROUP, 1)
            (kept,) = ready(actuator, GROUP, 1)
            seen = len(load.asked)
            eventually(lambda: len(load.asked) > seen + NUM_CLIENTS)
        assert [each for each in load.asked if not each.is_right] == []
        now, then = reader.read([kept])[kept.name], before[kept.name]
        assert isinstance(now, Counters)
        assert isinstance(then, Counters)
        traffic = between(then, now)
        assert traffic.ended > NUM_CLIENTS
        assert traffic.completion_tokens == 60 * traffic.ended
        assert traffic.itl_ms == pytest.approx(1000 * TOKEN_S)
    reader.close()


@pytest.mark.parametrize("name", PAGES)
def test_an_engine_that_is_killed_takes_its_own_streams_along_and_is_replaced(
    tmp_path: Path, name: str
) -> None:
    engine = replace(ENGINES[name], command=tuple(command_of(name).split()))
    with tending(tmp_path, engine, {"PYTHONPATH": str(ROOT)}) as actuator:
        victim, _ = ready(actuator, GROUP, 2)
        with loaded(tmp_path, UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")) as (proxy, load):
            eventually(lambda: len(answered_by(proxy)) == 2)
            (record,) = [r for r in records_in(tmp_path / "replicas") if r.name == victim.name]
            record.process.kill()
            killed_s = time.monotonic()
            eventually(lambda: victim.name not in {each.name for each in actuator.replicas()})
            ready(actuator, GROUP, 2)
            eventually(lambda: len(answered_by(proxy)) == 3)
        failed = [each for each in load.asked if not each.is_right]
        assert [each for each in failed if each.began_s > killed_s] == []
        assert all(each.is_cut or each.status >= 500 for each in failed), "no short success"


@pytest.mark.skipif(
    not (PREBUILT_LLAMA.python.exists() and MODEL.exists()),
    reason="llama-server is not in var/peers, or SmolLM2 is not in var/models",
)
def test_llama_server_is_started_measured_and_ended_behind_its_last_answer(tmp_path: Path) -> None:
    words = f"{PREBUILT_LLAMA.python} -m {PREBUILT_LLAMA.check} {{model}} --metrics"
    engine = replace(
        ENGINES["llama-server"],
        command=(*words.split(), "--port", "{port}", "--users", "{rows}"),
        answer_tokens=200.0,
    )
    settings = {"MODEL": str(MODEL), "PYTHONPATH": str(ROOT)}
    reader = PageReader(None, {"chat": engine})
    with tending(tmp_path, engine, settings) as actuator:
        (replica,) = ready(actuator, GROUP, 1)
        before = reader.read([replica])[replica.name]
        upstreams = str(tmp_path / "upstreams.yaml")
        with running_proxy(tmp_path, "http://127.0.0.1:9", UPSTREAMS_FILE=upstreams) as proxy:
            eventually(lambda: '"ready"' in proxy.metric("/ready"))
            body = {"prompt": "One, two,", "max_tokens": 200, "ignore_eos": True, "stream": True}
            answer = requests.post(
                f"{proxy.url}/v1/completions",
                json=body,
                headers=bearer(),
                stream=True,
                timeout=TIMEOUT_S,
            )
            lines = answer.iter_lines()
            assert next(lines).startswith(b"data: ")
            actuator.stop(GROUP, 0)
            rest = [line for line in lines if line]
        assert rest[-1] == b"data: [DONE]"
        now = reader.read([replica])[replica.name]
        assert isinstance(before, Counters)
        assert isinstance(now, Counters)
        traffic = between(before, now)
        assert (traffic.ended, traffic.completion_tokens) == (1.0, 200)
        timings = json.loads(rest[-2].removeprefix(b"data: "))["timings"]
        assert traffic.itl_ms == pytest.approx(timings["predicted_ms"] / 200, rel=0.01)
        eventually(lambda: not actuator.replicas())
    reader.close()


def test_a_plan_is_made_of_what_is_measured_of_another_engine(
    tmp_path: Path, optimizer_url: str
) -> None:
    """By the commands of docs/cluster.md; answers of 10 tokens take 65 ms, however many run."""
    delays_s = (0.02, *[0.005] * 9)
    script = Script(delays_s, (" word",) * 10, {"prompt_tokens": 8, "completion_tokens": 10})
    with scripted({"m": script}) as (_, url):
        asked = "sweep --model m --by concurrency --max-concurrency 4 --input-tokens 8 "
        asked += "--input-tokens 32 --output-tokens 10 --seconds 1"
        bench(*asked.split(), "--output-dir", tmp_path / "runs", BENCHMARK_API_BASE=url)
    (run,) = (tmp_path / "runs").iterdir()
    bench("fit", "--accelerator", "A", "--max-batch-size", "4", run)
    document = system_json(rate=1500, maxBatchSize=4)
    document["system"]["modelData"] = json.loads((run / "perf.json").read_text())
    (tmp_path / "system.json").write_text(json.dumps(document))
    path = tmp_path / "cluster.yaml"
    path.write_text(
        f"system: system.json\noptimizer: {optimizer_url}\naccelerators: {{A: {{}}, B: {{}}}}\n"
        "servers: {s: {engine: vllm, model: m}}\n"
    )
    config, system = read_config(path)
    parts = ControllerParts(config, system, OptimizerClient(optimizer_url), CountingReader())
    (plan,) = Planner(parts, []).cycle([], 0.0).servers["s"].plan.items()
    group, count = plan
    assert (group.accelerator, group.user_rows) == ("A", 4)
    assert count >= 1
    assert "--max-num-seqs 4" in " ".join(config.recipes(system).recipe(group).engine.command)


def bench(*arguments: str | Path, **variables: str) -> None:
    asked = CliRunner(env=variables).invoke(main, [*map(str, arguments)])
    assert asked.exit_code == 0, asked.output


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|(.*)\|$", page, re.MULTILINE)
    assert len(rows) == len(HEARTH.metrics)
    for column, name in enumerate(("vllm", "sglang", "llama-server"), start=1):
        written = {row[0]: tuple(re.findall("`(.+?)`", row[column])) for row in rows}
        assert {field: names for field, names in written.items() if names} == ENGINES[name].metrics
        assert f"| `{name}` | `{' '.join(ENGINES[name].command)}` |" in page
