"""Raw bytes on every route of both doors, the API's and the proxy's: whatever is sent, nothing is
answered with 500, nothing is left without an answer, and the server is as well as before.

More by command: `make fuzz`, RAW_FUZZ_EXAMPLES=20000 make fuzz
"""

import os
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from lab.kit.servers import TIMEOUT_S, ServedApi, eventually
from tests.e2e.raw_requests import (
    Route,
    broken_at_random,
    broken_chunks,
    broken_head,
    broken_one_by_one,
    exchange,
    routes_of,
)
from tests.forked import served
from tests.proxy.support import ProxyProcess, bearer, running_proxy

EXAMPLES = int(os.environ.get("RAW_FUZZ_EXAMPLES", "200"))  # for each door, of each kind
EVERY = 1 if "RAW_FUZZ_EXAMPLES" in os.environ else 3  # which of the values each field is given
CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Doors:
    api: ServedApi
    proxy: ProxyProcess


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("raw")
    settings: dict[str, Any] = {
        "MAX_SEQ_LEN": 64,
        "OPTIMIZER_STATEFUL": "true",
        "OPTIMIZER_STORE_PATH": folder / "optimizer.db",
        "OPTIMIZER_MILP_TIME_LIMIT_S": 1,
        "WEIGHTS_DB": folder / "weights.db",
    }
    with (
        served(folder / "log", **settings) as api,
        running_proxy(folder, api.url) as proxy,
    ):
        yield Doors(api, proxy)


def headers_of(door: str) -> str:
    if door == "api":
        return ""
    return "".join(f"{name}: {value}\r\n" for name, value in bearer().items())


def check_answers(doors: Doors, door: str, raw_requests: Iterable[bytes], ends: bool) -> None:
    """`ends`: the bytes may be no whole request, which is none of the server's faults."""
    port = doors.api.port if door == "api" else doors.proxy.port

    def fault_of(request: bytes) -> str | None:
        try:
            answer = exchange(port, request, ends)
        except TimeoutError:
            return f"no answer to {request[:3000]!r}"
        if answer.startswith(b"HTTP/1.1 500") or not (answer or ends):
            return f"{answer[:300]!r} to {request[:3000]!r}"
        return None

    with ThreadPoolExecutor(CLIENTS) as pool:
        faults = [fault for fault in pool.map(fault_of, raw_requests) if fault]
    assert not faults, "\n".join(faults[:10])
    eventually(doors.api.is_idle)
    assert doors.api.state()["status"] == "ready"
    assert requests.get(f"{doors.proxy.url}/health", timeout=TIMEOUT_S).ok
    assert "Traceback" not in doors.api.log
    assert "Traceback" not in doors.proxy.log()


def routes_of_api(doors: Doors) -> list[Route]:
    return routes_of(requests.get(f"{doors.api.url}/openapi.json", timeout=TIMEOUT_S).json())


def test_no_value_in_any_field_is_answered_with_500(doors: Doors) -> None:
    check_answers(doors, "api", broken_one_by_one(routes_of_api(doors), "", EVERY), ends=False)


@pytest.mark.timeout(max(600, EXAMPLES))
@pytest.mark.parametrize("door", ["api", "proxy"])
def test_no_bytes_to_any_route_are_answered_with_500(doors: Doors, door: str) -> None:
    routes, headers = routes_of_api(doors), headers_of(door)
    made = (broken_at_random(routes, headers, random.Random(n)) for n in range(EXAMPLES))
    check_answers(doors, door, made, ends=False)


@pytest.mark.timeout(max(600, EXAMPLES))
@pytest.mark.parametrize("door", ["api", "proxy"])
def test_no_head_leaves_a_client_waiting(doors: Doors, door: str) -> None:
    headers = headers_of(door)
    made = (broken_head(headers, random.Random(n)) for n in range(EXAMPLES))
    check_answers(doors, door, made, ends=True)


@pytest.mark.timeout(max(600, EXAMPLES))
@pytest.mark.parametrize("door", ["api", "proxy"])
def test_no_chunks_are_answered_with_500(doors: Doors, door: str) -> None:
    routes, headers = routes_of_api(doors), headers_of(door)
    made = (broken_chunks(routes, headers, random.Random(n)) for n in range(EXAMPLES))
    check_answers(doors, door, made, ends=True)
