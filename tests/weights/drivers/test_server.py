"""The driver of servers that take their split from a variable: real processes, over HTTP."""

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from lab.kit.servers import TIMEOUT_S, eventually
from tests.ports import free_port
from weights.drivers import command
from weights.drivers.server import ServerDriver
from weights.errors import EngineUnusable, TrialFailed

# Two stages of six layers; a step takes as long as the slower one. `child` outlives its parent.
SERVER = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
layers = [int(each) for each in os.environ["PARTITION"].split(",")]
if layers[0] > 4:
    sys.exit("out of memory on stage 0")
if "--child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(sys.argv[-1], "w").write(str(child.pid))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"data": []})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.005 * max(layers[0] * 2, layers[1]) ** 2)
        self.answer({"usage": {"completion_tokens": body["max_tokens"]}})
    def answer(self, body):
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *arguments):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def driver_of(tmp_path: Path, *arguments: str, **fields: Any) -> ServerDriver:
    port = free_port()
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    given: dict[str, Any] = {
        "command": (sys.executable, str(script), str(port), *arguments),
        "variable": "PARTITION",
        "stages": 2,
        "num_layers": 6,
        "url": f"http://127.0.0.1:{port}/v1",
        "model": "m",
        "environment": dict(os.environ),
        "users": 2,
        "generated_tokens": 10,
        "start_timeout_s": 60,
    }
    return ServerDriver(**given | fields)


def is_gone(pid: int) -> bool:
    """Ended, though perhaps nobody has asked how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


pytestmark = pytest.mark.slow


def test_a_split_is_in_the_environment_and_nothing_is_left(tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    driver = driver_of(tmp_path, "--child", str(child_file))
    assert driver.measure((2, 4)) > 0
    assert eventually(lambda: is_gone(int(child_file.read_text())))
    with pytest.raises(requests.ConnectionError):
        requests.get(driver.url, timeout=TIMEOUT_S)
    assert driver.finish((2, 4)) == "PARTITION=2,4"


def test_a_server_that_ends_is_a_failed_trial_with_its_last_words(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    with pytest.raises(TrialFailed, match="ended with 1: out of memory on stage 0"):
        driver.measure((5, 1))


def test_another_server_in_its_place_is_not_measured(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    served = driver._served((2, 4))
    with served, pytest.raises(EngineUnusable, match="answers already"):
        replace(driver)


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        driver = driver_of(tmp_path, command=("sleep", "600"), start_timeout_s=0.2)
        with pytest.raises(TrialFailed, match=r"not answer within 0\.2 s"):
            driver.measure((2, 4))


def test_the_command_finds_a_split_that_runs_and_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = driver_of(tmp_path)
    monkeypatch.setenv("WEIGHTS_DB", str(tmp_path / "weights.db"))
    arguments = ["command", "--variable", "PARTITION", "--stages", "2", "--layers", "6"]
    arguments += ["--url", driver.url, "--model", "m", "--users", "2", "--trials", "8"]
    arguments += ["--repeats", "2", "--timeout", "60", "--", *driver.command]
    command.main(arguments, standalone_mode=False)
    # Which split is the best is measured, on a machine that may be busy; none that failed is.
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    name, _, split = result["setting"].partition("=")
    first, second = map(int, split.split(","))
    assert (name, first + second) == ("PARTITION", 6)
    assert first <= 4
    assert (tmp_path / "weights.db").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["exo", "--url", "ftp://a", "--model", "m"], "no address"),
        (["llama.cpp", "--rpc", "10.0.0.2", "--model", "m"], "no list"),
        (["vllm", "--stages", "1", "--model", "m"], "2<=x<=64"),
        (["vllm", "--stages", "2", "--layers", "9" * 30, "--model", "m"], "2<=x<=1024"),
        (["command", "--variable", "A=B", "--stages", "2", "--model", "m"], "no name"),
        (["vllm", "--stages", "2", "--layers", "4", "--model", "m"], "after --"),
        (["llama.cpp", "--rpc", "a:1,b:2", "--model", "/nowhere"], "does not tell its layers"),
        (["tpu", "--model", "m"], "No such command"),
    ],
)
def test_wrong_lines_say_what_is_taken(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert reason in f"{ended.value} {capsys.readouterr().err}"
