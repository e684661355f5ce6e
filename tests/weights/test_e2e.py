"""The weights service as users start it: a process, real sockets, a kill and a restart."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from lab.kit.servers import TIMEOUT_S, Process
from tests.service import kill_nine, running_service
from tests.weights.support import update


def running(
    folder: Path, *arguments: str, **environment: str
) -> AbstractContextManager[tuple[str, Process]]:
    return running_service(folder, arguments or ("weights",), "WEIGHTS_PORT", **environment)


def call(url: str, body: object = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_what_was_acknowledged_is_there_after_kill_nine(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    redis_url = request.getfixturevalue("clean_redis_url") if store == "redis" else ""
    acknowledged: list[float] = []
    with running(tmp_path, REDIS_URL=redis_url) as (url, process), ThreadPoolExecutor(8) as pool:

        def tell(number: int) -> None:
            try:
                status, _ = call(f"{url}/weights_update", update([0.5, 0.5], float(number)))
            except (OSError, HTTPException):
                return  # killed meanwhile
            assert status == 200
            acknowledged.append(float(number))
            if len(acknowledged) == 60:
                kill_nine(process)

        list(pool.map(tell, range(100)))
    with running(tmp_path, REDIS_URL=redis_url) as (url, _):
        shown = call(f"{url}/weights/sessions/s?limit=1000")[1]
    stored = [one["performance_metric"] for one in shown["history"]]
    assert len(acknowledged) >= 60
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored)) == shown["num_observations"]
    assert (tmp_path / "var" / "weights.db").exists() == (store == "sqlite")


def test_alone_it_has_its_own_answers_for_unknown_paths(tmp_path: Path) -> None:
    with running(tmp_path) as (url, _):
        assert call(f"{url}/health") == (200, {"status": "ok"})
        assert call(f"{url}/weights_update/", update([0.5, 0.5], 1.0))[0] == 200
        message = "GET /nope: Not Found; /docs/ has the routes"
        assert call(f"{url}/nope") == (404, {"status_code": 404, "message": message})


def test_an_unreachable_redis_costs_503s_and_not_the_process(tmp_path: Path) -> None:
    with running(tmp_path, REDIS_URL="redis://127.0.0.1:1/0") as (url, _):
        assert call(f"{url}/weights_update", update([0.5, 0.5], 1.0))[0] == 503
        assert call(f"{url}/weights/sessions")[0] == 503
        assert call(f"{url}/health")[0] == 200
