"""Small services alone: a start that cannot be, and clients that are slow."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from gunicorn.util import parse_address

from common.connections.sockets import host_and_port
from lab.kit.servers import TIMEOUT_S, environment, post_bytes
from tests.forked import fork_server
from tests.service import running_service

NUM_CLIENTS = 20  # of each kind; there are 16 threads


def ended(folder: Path, *arguments: str, **settings: object) -> tuple[int, str]:
    """The exit status of `python -m *arguments`, and what it said."""
    with (folder / "log").open("wb") as log:
        process = fork_server().start(arguments, log, environment(**settings))
    return process.wait(TIMEOUT_S), (folder / "log").read_text()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::", "fe80::1%eth0"])
def test_gunicorn_listens_on_the_address_that_is_set(host: str) -> None:
    assert parse_address(host_and_port(host, 7000)) == (host, 7000)


@pytest.mark.parametrize(
    ("module", "variable", "service"),
    [
        ("optimizer", "INFERNO_PORT", "The optimizer"),
        ("weights", "WEIGHTS_PORT", "The weights service"),
    ],
)
def test_wrong_settings_end_the_start_with_every_fault(
    module: str, variable: str, service: str, tmp_path: Path
) -> None:
    threads = f"{module.upper()}_THREADS"
    status, log = ended(tmp_path, module, **{variable: "none", threads: "0"})
    assert status == 1
    said, *faults = log.split("\n  - ")
    assert said == f"{service} cannot start:"
    assert [fault.partition("=")[0] for fault in faults] == [variable, threads]


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (("gunicorn", "--config", "gunicorn.conf.py", "no_app"), "SERVICE"),
        (("gunicorn", "--config", "proxy/gunicorn.conf.py", "no_app"), "PROXY"),
        (("optimizer",), "INFERNO"),
        (("weights",), "WEIGHTS"),
    ],
)
def test_a_taken_port_is_named_with_its_settings(
    command: tuple[str, ...], prefix: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        own = {f"{prefix}_PORT": port, f"{prefix}_HOST": "127.0.0.1", "JWT_SECRET": "x"}
        status, log = ended(tmp_path, *command, **own)
    assert status == 1
    named = (
        f"{prefix}_HOST='127.0.0.1', {prefix}_PORT={port} cannot be bound (Address already in use)"
    )
    assert f"{named}; stop what holds the port or choose another." in log
    assert "Connection in use" not in log


@pytest.mark.parametrize(
    ("module", "variable"), [("optimizer", "INFERNO_PORT"), ("weights", "WEIGHTS_PORT")]
)
def test_clients_that_do_not_go_on_sending_take_no_thread(
    module: str, variable: str, tmp_path: Path
) -> None:
    """More of them than there are threads, each with half a head or half a body."""
    service = running_service(tmp_path, [module], variable)
    with service as (url, _), ExitStack() as sockets:
        port = int(url.rsplit(":", 1)[1])
        for begun in (b"POST /x HTTP/1.1\r\nHost: te", post_bytes("/x", b"{}")[:-1]) * NUM_CLIENTS:
            client = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
            sockets.enter_context(client).sendall(begun)
        assert requests.get(f"{url}/health", timeout=TIMEOUT_S).status_code == 200
        assert requests.get(f"{url}/openapi.json", timeout=TIMEOUT_S).status_code == 200
