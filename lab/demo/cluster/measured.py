"""Measures how fast a replica limited to its share of a core is, with closed loops by `python -m
benchmarking` on one replica, and a fit. One thread."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from cluster.actuators.api_process import ApiProcess, start_api
from common.connections.sockets import free_port
from common.fetch import answers_ok
from common.files import write_whole
from lab.demo.cluster.processes import HOST, DemoFailed, until
from lab.demo.cluster.story import ACCELERATOR, MODEL_NAME, Story
from lab.kit.shares import choose_limiter, hold_process

# Requests of each closed loop, which takes some seconds.
REQUESTS_BY_USERS = {1: 48, 2: 64, 3: 80, 4: 80, 6: 96, 8: 96}
LOAD = 0.75  # share of a replica's highest rate: one suffices, but not after it lost 30 %
START_S, END_S, MEASURE_S = 120.0, 30.0, 300.0


def measured(story: Story, folder: Path, rate_per_s: float | None = None) -> Story:
    """Returns the story with one replica's performance data and the given load, by default one that
    a replica can serve. Raises DemoFailed."""
    if story.shares is None:
        raise ValueError("A story without shares holds no replica that could be measured.")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port(HOST)
    settings = {**story.backend.settings, "USER_ROWS": str(story.user_rows)}
    replica = start_api((HOST, port), settings, folder / "replica.log")
    url = f"http://{HOST}:{port}"
    try:
        with closing(choose_limiter()) as limiter:
            until(lambda: answers_ok(f"{url}/ready"), START_S, "the replica to measure")
            hold_process(limiter, replica.pid, story.shares.before)
            _measure(url, story.out_tokens, folder)
    finally:
        end(replica)
    [perf] = json.loads((folder / "loops" / "perf.json").read_text())["models"]
    most_per_s = json.loads((folder / "loops" / "fit.json").read_text())["validity"]["rate_per_s"]
    return replace(
        story,
        backend=replace(story.backend, perf=perf),
        rate_per_s=rate_per_s or LOAD * max(most_per_s),
    )


def _measure(url: str, tokens: int, folder: Path) -> None:
    heading = "model_name,input_tokens,output_tokens,num_requests,concurrent_requests"
    rows = [f"{MODEL_NAME},{tokens},{tokens},{n},{u}" for u, n in REQUESTS_BY_USERS.items()]
    write_whole(folder / "rows.csv", "\n".join([heading, *rows]))
    config = {"model_configs_path": str(folder / "rows.csv"), "output_files_dir": str(folder)}
    write_whole(folder / "config.yaml", json.dumps(config))  # JSON is valid YAML
    where = {"BENCHMARK_API_BASE": f"{url}/v1"}
    benchmarking(["run", "--run-name", "loops", str(folder / "config.yaml")], where)
    benchmarking(["fit", "--accelerator", ACCELERATOR, str(folder / "loops")], {})


def benchmarking(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Runs `python -m benchmarking`. Raises DemoFailed with the end of its output."""
    command = [sys.executable, "-m", "benchmarking", *arguments]
    ended = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=MEASURE_S,
        check=False,
    )
    if ended.returncode:
        raise DemoFailed(f"benchmarking {arguments[0]}: {(ended.stderr or ended.stdout)[-500:]}")


def end(replica: ApiProcess) -> None:
    replica.terminate()
    try:
        until(lambda: not replica.is_running(), END_S, "the end of the measured replica")
    finally:
        replica.kill()
