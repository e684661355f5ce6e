"""Starting, draining and dying, with real gunicorn."""

import http.client
import json
import os
import signal
import socket
from pathlib import Path

import jwt
import psutil
import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually, post_bytes
from lab.kit.servers import served as served_by_command
from tests.forked import served

ALTERED = "tests.e2e.altered_servers"
MANY_SIGNALS = 2000
SECRET = "a secret of more than thirty-two bytes"


def test_sigterm_lets_a_running_stream_finish_and_then_the_process_ends(
    held_api: ServedApi, release_file: Path
) -> None:
    children = psutil.Process(held_api.process.pid).children(recursive=True)
    stream = held_api.open_stream(text="x" * 40)
    held_api.process.send_signal(signal.SIGTERM)
    eventually(lambda: held_api.state()["status"] == "draining")
    refused = held_api.post(text="late")
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    release_file.touch()
    assert stream.text == "x" * 40
    assert held_api.process.wait(TIMEOUT_S) == 0
    assert not [child for child in children if child.is_running()]


def test_drain_closes_admission_first_and_ends_the_process_last(
    held_api: ServedApi, release_file: Path
) -> None:
    stream = held_api.open_stream(text="x" * 40)
    assert requests.post(f"{held_api.url}/drain", timeout=TIMEOUT_S).status_code == 202
    assert held_api.state()["status"] == "draining"
    assert held_api.post(text="late").status_code == 503
    release_file.touch()
    assert stream.text == "x" * 40
    assert held_api.process.wait(TIMEOUT_S) == 0


def test_no_number_of_sigterms_keeps_a_worker_from_ending(
    held_api: ServedApi, release_file: Path
) -> None:
    """A launcher may send one to all of gunicorn, whose arbiter sends its worker another."""
    (worker,) = psutil.Process(held_api.process.pid).children()
    stream = held_api.open_stream(text="x" * 40)
    held_api.process.send_signal(signal.SIGTERM)
    for _ in range(MANY_SIGNALS):
        os.kill(worker.pid, signal.SIGTERM)
    release_file.touch()
    assert stream.text == "x" * 40
    assert held_api.process.wait(TIMEOUT_S) == 0


def test_dead_decode_thread_ends_the_drain_that_runs(tmp_path: Path) -> None:
    app = f"{ALTERED}:create_server_that_dies_draining()"
    with served(tmp_path / "log", app, MOCK_TOKENS_PER_SECOND=20, DRAIN_TIMEOUT=0.5) as api:
        stream = api.open_stream(text="x" * 2000, max_tokens=2000)
        api.process.send_signal(signal.SIGTERM)
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            _ = stream.content
        assert api.process.wait(TIMEOUT_S) == 0
        assert "the decode thread died" in api.log
        assert "Worker exiting" in api.log  # by itself: nobody had to kill it


def test_request_threads_wait_for_the_processor_until_a_step_lets_go(
    held_api: ServedApi, release_file: Path
) -> None:
    stream = held_api.open_stream(text="x" * 40)
    (worker,) = psutil.Process(held_api.process.pid).children()
    policies = [os.sched_getscheduler(thread.id) for thread in worker.threads()]
    assert os.sched_getscheduler(worker.pid) == os.SCHED_BATCH
    assert policies.count(os.SCHED_BATCH) > 1
    assert os.SCHED_OTHER in policies  # the decode thread
    release_file.touch()
    assert stream.text == "x" * 40


def test_what_outlives_the_drain_timeout_is_broken_off_not_ended_well(tmp_path: Path) -> None:
    settings = {"MOCK_TOKENS_PER_SECOND": 20, "USER_ROWS": 1, "DRAIN_TIMEOUT": 0.5}
    with served(tmp_path / "log", MOCK_APP, **settings) as api:
        stream = api.open_stream(text="x" * 2000, max_tokens=2000)
        waiting = api.send_raw(post_bytes("/inference", b'{"text": "queued"}'))
        eventually(lambda: api.state()["queued"] == 1)
        api.process.send_signal(signal.SIGTERM)
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            _ = stream.content
        assert waiting.recv(65536).startswith(b"HTTP/1.1 503")
        waiting.close()
        assert api.process.wait(TIMEOUT_S) == 0
        assert "finish_reason=error error=draining" in api.log
        assert "Traceback" not in api.log


def test_only_local_or_authorised_callers_may_drain(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP, JWT_SECRET=SECRET) as api:
        through_proxy = {"X-Forwarded-For": "10.0.0.1"}
        drain = f"{api.url}/drain"
        assert requests.post(drain, headers=through_proxy, timeout=TIMEOUT_S).status_code == 401
        assert api.state()["status"] == "ready"
        token = {"Authorization": f"Bearer {jwt.encode({'team_id': 'a'}, SECRET)}"}
        assert (
            requests.post(drain, headers=through_proxy | token, timeout=TIMEOUT_S).status_code
            == 202
        )
        assert api.process.wait(TIMEOUT_S) == 0


def test_api_checks_tokens_itself_when_it_has_a_secret(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP, JWT_SECRET=SECRET) as api:
        refused = api.post(text="hi")
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        token = jwt.encode({"team_id": "tenstorrent"}, SECRET)
        for key, status in (
            ({"X-Api-Key": token}, 200),
            ({"api-key": token}, 200),
            ({"api-key": token, "X-Api-Key": "sk-1"}, 401),
        ):
            answer = requests.get(f"{api.url}/v1/models", headers=key, timeout=TIMEOUT_S)
            assert answer.status_code == status
        good = requests.post(
            f"{api.url}/inference",
            json={"text": "hi"},
            headers={"Authorization": f"bearer {token}"},
            timeout=TIMEOUT_S,
        )
        assert good.text == "hi"
        assert SECRET not in api.log


def test_dead_decode_thread_fails_everybody_at_once_and_the_worker_is_replaced(
    tmp_path: Path,
) -> None:
    app = f"{ALTERED}:create_crashing_server()"
    with served(tmp_path / "log", app, USER_ROWS=1) as api:
        (worker,) = psutil.Process(api.process.pid).children()
        running = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
        body = json.dumps({"text": "ends in a crash!" + "x" * 500, "max_tokens": 500})
        queued = api.send_raw(b"")  # connected before, so that this worker has to answer
        running.request("POST", "/inference", body, {"Content-Type": "application/json"})
        response = running.getresponse()
        queued.sendall(post_bytes("/inference", b'{"text": "queued"}'))
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        assert queued.recv(65536).startswith(b"HTTP/1.1 500")
        queued.close()
        running.close()
        eventually(lambda: not worker.is_running())
        api.wait_until_ready()
        assert api.post(text="well again").text == "well again"
        assert "the decode thread died" in api.log


def test_model_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    app = f"{ALTERED}:create_unloadable_server()"
    with served(tmp_path / "log", app, start_timeout_s=None) as api:
        assert api.process.wait(TIMEOUT_S) != 0
        assert "no such weights" in api.log


def test_start_names_every_faulty_variable(tmp_path: Path) -> None:
    settings = {"USER_ROWS": "none", "DEVICE": "tpu", "DRAIN_TIMEOUT": -1}
    with served_by_command(tmp_path / "log", MOCK_APP, start_timeout_s=None, **settings) as api:
        assert api.process.wait(TIMEOUT_S) != 0
        for variable in ("USER_ROWS='none'", "DEVICE='tpu'", "DRAIN_TIMEOUT='-1'"):
            assert variable in api.log
        assert "Traceback" not in api.log


def test_start_names_a_taken_port_and_a_missing_model_together(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        settings = {"SERVICE_PORT": port, "MODEL": "/nowhere/at/all"}
        with served(tmp_path / "log", start_timeout_s=None, **settings) as api:
            assert api.process.wait(TIMEOUT_S) != 0
            assert f"SERVICE_PORT={port} cannot be bound" in api.log
            assert "/nowhere/at/all" in api.log
            assert "Traceback" not in api.log
