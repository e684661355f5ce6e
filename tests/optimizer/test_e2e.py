"""The optimizer as users start it: a process, real sockets, a kill and a restart."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lab.kit.servers import TIMEOUT_S, Process
from tests.optimizer.support import server, system_data
from tests.service import kill_nine, running_service


def running(
    folder: Path, *arguments: str, **environment: str
) -> AbstractContextManager[tuple[str, Process]]:
    return running_service(
        folder, arguments, "INFERNO_PORT", INFERNO_HOST="127.0.0.1", **environment
    )


def call(url: str, body: object = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_state_in_memory_is_the_state_on_disk_after_kill_nine(tmp_path: Path) -> None:
    with running(tmp_path, "optimizer", "-F") as (url, process):
        assert call(f"{url}/optimizeOne", system_data([server("a/b")]))[0] == 200

        def edit(number: int) -> int:
            if number % 5 == 0:
                return call(f"{url}/optimize", {"unlimited": True})[0]
            return call(f"{url}/addServer", server(f"s{number}", 10 + number))[0]

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(edit, range(60))) == {200}
        assert call(f"{url}/getServer/a%2Fb")[1]["desiredAlloc"]["numReplicas"] == 2
        before = call(f"{url}/state")[1]
        kill_nine(process)
    with running(tmp_path, "optimizer", "-F") as (url, _):
        assert call(f"{url}/state")[1] == before
    assert (tmp_path / "var" / "optimizer.db").exists()


def test_without_a_state_it_solves_and_has_no_other_routes(tmp_path: Path) -> None:
    with running(tmp_path, "optimizer") as (url, _):
        status, answer = call(f"{url}/optimizeOne", system_data([server()]))
        assert (status, answer["allocations"]["s"]["accelerator"]) == (200, "A")
        assert call(f"{url}/nope") == (404, "404 page not found")
        assert call(f"{url}/optimize", {}) == (404, "404 page not found")


def test_store_is_redis_if_a_url_is_set(clean_redis_url: str, tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path, "optimizer", "-F", REDIS_URL=clean_redis_url) as (url, _):
            call(f"{url}/addModel/m")
            assert call(f"{url}/getModels")[1] == ["m"]
    assert not (tmp_path / "var" / "optimizer.db").exists()
