"""Measures how fast a replica of each engine is when limited to its share, with loops by `hearth
bench` on one replica, a fit, and the highest rate within the levels. One thread."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from cluster.actuators.api_process import start_api
from cluster.config import ServerKeys
from cluster.engines import filled
from common.connections.sockets import free_port
from common.fetch import answers_ok
from lab.demo.cluster.measured import benchmarking, end
from lab.demo.cluster.processes import HOST, DemoFailed, until
from lab.demo.fleet.files import ACCELERATOR
from lab.demo.fleet.members import OUT_TOKENS, PLANNED_TTFT_MS, Member
from lab.kit.shares import choose_limiter, hold_process
from optimizer.inferno_json import read
from optimizer.questions.queries import SizeQuery, size
from optimizer.system import System

START_S = 300.0  # vLLM imports for a minute on a small machine
SECONDS = 8.0  # per number of users; a tenth of a core answers few requests in less time
LOAD = 1.5  # the peak over one replica's highest rate within the planned levels
EASE = 1.25  # least planned ITL over the time of a step with one row


def with_speed(member: Member, folder: Path) -> Member:
    """Measures one replica of a member. Returns the member with its performance data and a peak
    load that needs more than one replica. Raises DemoFailed."""
    keys = ServerKeys.model_validate(dict(member.keys))
    engine, port = keys.engine_for(OUT_TOKENS), free_port(HOST)
    settings = {**keys.replica_settings, "USER_ROWS": str(member.rows)}
    command = filled(engine.command, model=keys.model, rows=member.rows)
    log = folder / f"{member.name}.log"
    replica, url = start_api((HOST, port), settings, log, command=command), f"http://{HOST}:{port}"
    try:
        with closing(choose_limiter()) as limiter:
            until(lambda: answers_ok(url + engine.ready_path), START_S, member.title)
            hold_process(limiter, replica.pid, member.share)
            found = _loops(url, member, folder)
    finally:
        end(replica)
    [perf] = json.loads((found / "perf.json").read_text())["models"]
    planned_itl_ms = max(member.planned_itl_ms, EASE * perf["serviceCurve"]["decodeMs"][0]["ms"])
    measured = replace(member, perf=perf, planned_itl_ms=planned_itl_ms)
    return replace(measured, peak_per_s=LOAD * rate_within_levels(measured))


def rate_within_levels(member: Member) -> float:
    """Returns how many requests a second one replica answers within the planned levels.
    Raises DemoFailed where even one row is too slow for them."""
    query = {
        "serviceCurve": member.perf["serviceCurve"],
        "maxBatchSize": member.rows,
        "avgInTokens": OUT_TOKENS,
        "avgOutTokens": OUT_TOKENS,
        "slo-ttft": PLANNED_TTFT_MS,
        "slo-itl": member.planned_itl_ms,
    }
    sized = size(read(SizeQuery, query), System())
    if not sized["feasible"]:
        raise DemoFailed(f"{member.title} does not meet its levels with {member.share} of a core")
    return sized["arrivalRate"] / 60


def _loops(url: str, member: Member, folder: Path) -> Path:
    """Measures and fits closed loops. Returns the folder of the run."""
    sweep = ["sweep", "--model", member.name, "--tokenizer", member.tokenizer]
    sweep += ["--by", "concurrency", "--max-concurrency", str(member.rows)]
    sweep += ["--input-tokens", str(OUT_TOKENS), "--output-tokens", str(OUT_TOKENS)]
    sweep += ["--seconds", str(SECONDS), "--output-dir", str(folder / member.name)]
    benchmarking(sweep, {"BENCHMARK_API_BASE": f"{url}/v1"})
    [run] = (folder / member.name).iterdir()
    fit = ["fit", "--accelerator", ACCELERATOR, "--max-batch-size", str(member.rows), str(run)]
    benchmarking(fit, {})
    return run
