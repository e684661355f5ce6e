"""Measures how long the controller takes to read many replicas' /metrics, all from one server."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client import generate_latest

from cluster.controller.pages import PageReader
from cluster.errors import MetricsUnread
from cluster.replicas import Group, Replica, ReplicaState
from common.fetch import answers_ok
from inference_api.core.served_model import StepTotals
from inference_api.core.status import ModelSnapshot
from inference_api.watch.metrics import ServerMetrics, ServerState
from lab.kit.servers import eventually, free_port

ROWS = 32


def seconds_to_read(replicas: int) -> tuple[float, int]:
    """Returns the seconds, and the bytes of one page. Raises MetricsUnread."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "metrics")
        page.write_bytes(_page())
        port = free_port()
        server = subprocess.Popen(
            [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            eventually(lambda: answers_ok(f"{url}/metrics"), 60.0)
            return _read(url, replicas), page.stat().st_size
        finally:
            server.terminate()
            server.wait(60)


def _read(url: str, replicas: int) -> float:
    group, reader = Group("s", "A", ROWS), PageReader(None)
    asked = [Replica(f"r{n}", group, ReplicaState.READY, url) for n in range(replicas)]
    start_s = time.perf_counter()
    found = reader.read(asked)
    seconds = time.perf_counter() - start_s
    reader.close()
    for each in found.values():
        if isinstance(each, MetricsUnread):
            raise each
    return seconds


def _page() -> bytes:
    """Returns the page of an API that serves one model."""
    totals = StepTotals(steps=1, prefilled_tokens=1, generated_tokens=1, model_s=1.0, loop_s=1.0)
    snapshot = ModelSnapshot(busy_rows=3, totals=totals)
    state = ServerState(user_rows=ROWS, queued=0, sessions=3, snapshot=snapshot)
    return generate_latest(ServerMetrics(["m"], lambda _: state).registry)
