"""Clients that send slowly, nothing or too much, against real gunicorn and the mock backend."""

import http.client
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually, post_bytes
from tests.forked import served

NUM_SOCKETS = 2000
MAX_WAITING_PER_ADDRESS = 16
MAX_CONNECTIONS = 128
MAX_BODY_BYTES = 4096
NEVER_S = 3600  # so whoever waits for a client in these tests waits for good
HANG_S = 30.0  # and who has not answered by then is waiting for one
PATIENT = {"HEAD_TIMEOUT": NEVER_S, "BODY_TIMEOUT": NEVER_S}
HALF_HEAD = b"POST /inference HTTP/1.1\r\nHost: te"
HALF_BODY = post_bytes("/inference", b'{"text": "half"}')[:-8]
CHUNKED_HEAD = (
    b"POST /inference HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def bounded_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    settings = PATIENT | {
        "MAX_WAITING_PER_ADDRESS": MAX_WAITING_PER_ADDRESS,
        "MAX_CONNECTIONS": MAX_CONNECTIONS,
        "MAX_CONTENT_LENGTH": MAX_BODY_BYTES,
    }
    with served(tmp_path_factory.mktemp("bounded") / "log", MOCK_APP, **settings) as api:
        yield api


@pytest.fixture(scope="module")
def hasty_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    settings = {"HEAD_TIMEOUT": 1, "BODY_TIMEOUT": 1, "MIN_BODY_RATE": 50}
    with served(tmp_path_factory.mktemp("hasty") / "log", MOCK_APP, **settings) as api:
        yield api


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    """Closes what a test opens; as many as it likes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answers_health(api: ServedApi) -> bool:
    return requests.get(f"{api.url}/health", timeout=HANG_S).text == "OK"


def is_silent(api: ServedApi, path: str) -> bool:
    try:
        requests.get(f"{api.url}{path}", timeout=2)
    except requests.Timeout:
        return True
    return False


def all_of(client: socket.socket) -> bytes:
    """What the server sends until it closes, which it has to do."""
    received = b""
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    client.close()
    return received


def test_streams_and_health_go_on_beside_2000_silent_and_half_open_sockets(
    tmp_path: Path, sockets: ExitStack
) -> None:
    texts = [f"stream {number:02d} " * 20 for number in range(32)]
    with served(tmp_path / "log", MOCK_APP, **PATIENT) as api, ThreadPoolExecutor(32) as pool:
        for number in range(NUM_SOCKETS):
            beginning = (b"", HALF_HEAD, HALF_BODY, CHUNKED_HEAD + b"5\r\nhal")[number % 4]
            sockets.enter_context(api.send_raw(beginning))
        api.wait_until_ready()  # which comes after all of them
        answers = pool.map(lambda text: api.post(text=text, max_tokens=300).text, texts)
        assert all(answers_health(api) for _ in range(5))
        assert list(answers) == texts


def test_half_a_head_is_answered_408(hasty_api: ServedApi) -> None:
    answer = all_of(hasty_api.send_raw(HALF_HEAD))
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),  # TLS
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),  # no Host
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 5000), 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: a-cake\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: cake\r\n\r\n", 501),
    ],
)
def test_malformed_head_is_refused_at_once(
    bounded_api: ServedApi, head: bytes, status: int
) -> None:
    answer = all_of(bounded_api.send_raw(head))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "invalid_request_head"
    assert len(error["message"]) < 400


def test_half_a_body_is_answered_408_although_a_byte_comes_now_and_then(
    hasty_api: ServedApi,
) -> None:
    client, never = hasty_api.send_raw(post_bytes("/inference", b"x" * 4000)[:-3990]), Event()
    client.settimeout(0.2)
    for _ in range(100):
        try:
            answer = client.recv(65536)
            break
        except TimeoutError:
            client.sendall(b"x")
            never.wait(0.01)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    client.close()


def test_silent_connection_is_closed_without_an_answer(hasty_api: ServedApi) -> None:
    assert all_of(hasty_api.send_raw(b"")) == b""


def test_body_in_pieces_is_served(bounded_api: ServedApi) -> None:
    request, never = post_bytes("/inference", b'{"text": "piece by piece"}'), Event()
    client = bounded_api.send_raw(b"")
    for start in range(0, len(request), 10):
        client.sendall(request[start : start + 10])
        never.wait(0.02)
    answer = http.client.HTTPResponse(client)
    answer.begin()
    assert answer.read() == b"piece by piece"
    client.close()


def test_oldest_of_an_address_goes_first_and_whole_requests_are_served(
    bounded_api: ServedApi, sockets: ExitStack
) -> None:
    first = sockets.enter_context(bounded_api.send_raw(HALF_HEAD))
    others = [
        sockets.enter_context(bounded_api.send_raw(b"")) for _ in range(MAX_WAITING_PER_ADDRESS)
    ]
    assert all_of(first).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    others[-1].sendall(post_bytes("/inference", b'{"text": "still welcome"}'))
    assert others[-1].recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("num_clients", [MAX_CONNECTIONS - 28, 2 * MAX_CONNECTIONS])
def test_whole_requests_that_come_at_once_are_all_answered(
    bounded_api: ServedApi, sockets: ExitStack, num_clients: int
) -> None:
    """More than may wait of an address, and more than there may be connections."""
    clients = [sockets.enter_context(bounded_api.send_raw(b"")) for _ in range(num_clients)]
    for client in clients:
        with suppress(ConnectionError):
            client.sendall(post_bytes("/inference", b'{"text": "at once"}'))
    answers = [client.recv(65536) for client in clients]
    assert {answer[:13] for answer in answers} <= {b"HTTP/1.1 200 ", b"HTTP/1.1 503 "}
    busy = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
    assert all(b"\r\nRetry-After: " in answer for answer in busy)


def health_over(client: http.client.HTTPConnection) -> bytes:
    client.request("GET", "/health")
    return client.getresponse().read()


def test_kept_alive_connections_make_room_for_new_ones(
    bounded_api: ServedApi, sockets: ExitStack
) -> None:
    for _ in range(2 * MAX_CONNECTIONS):
        client = http.client.HTTPConnection("127.0.0.1", bounded_api.port, timeout=HANG_S)
        sockets.callback(client.close)
        assert health_over(client) == b"OK"
    new = http.client.HTTPConnection("127.0.0.1", bounded_api.port, timeout=HANG_S)
    sockets.callback(new.close)
    new.connect()
    assert health_over(client) == b"OK"  # so the new one is accepted, and has sent nothing yet
    assert health_over(new) == b"OK"


def test_bytes_of_all_requests_are_bounded_and_the_largest_goes_first(
    bounded_api: ServedApi, sockets: ExitStack
) -> None:
    clients = []
    for host in range(2, 8):  # each address may have sixteen
        for _ in range(MAX_WAITING_PER_ADDRESS):
            client = socket.create_connection(
                ("127.0.0.1", bounded_api.port),
                timeout=HANG_S,
                source_address=(f"127.0.0.{host}", 0),
            )
            clients.append(sockets.enter_context(client))
            client.sendall(HALF_HEAD + b"x" * 60_000)
    assert answers_health(bounded_api)
    assert clients[0].recv(65536).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


def test_connection_is_reused_for_the_next_request(bounded_api: ServedApi) -> None:
    client = http.client.HTTPConnection("127.0.0.1", bounded_api.port, timeout=HANG_S)
    ports = set()
    for number in range(3):
        body = json.dumps({"text": f"number {number}"})
        client.request("POST", "/inference", body, {"Content-Type": "application/json"})
        ports.add(client.sock.getsockname())
        assert client.getresponse().read() == f"number {number}".encode()
    client.close()
    assert len(ports) == 1


def test_chunked_body_is_served(bounded_api: ServedApi) -> None:
    response = requests.post(
        f"{bounded_api.url}/inference",
        data=iter([b'{"text": ', b'"in chunks"}']),
        headers={"Content-Type": "application/json"},
        timeout=HANG_S,
    )
    assert response.text == "in chunks"


def test_client_that_expects_100_continue_gets_it_before_its_body(bounded_api: ServedApi) -> None:
    head, _, body = post_bytes("/inference", b'{"text": "expected"}').partition(b"\r\n\r\n")
    client = bounded_api.send_raw(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(body)
    answer = http.client.HTTPResponse(client)
    answer.begin()
    assert (answer.status, answer.read()) == (200, b"expected")
    client.close()


def test_body_over_the_limit_is_refused_at_its_head(bounded_api: ServedApi) -> None:
    head = post_bytes("/weights_gen", b"x" * (MAX_BODY_BYTES + 1)).partition(b"\r\n\r\n")[0]
    answer = all_of(bounded_api.send_raw(head + b"\r\nExpect: 100-continue\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"exceeds 4096 bytes" in answer


def test_client_that_sends_all_of_a_body_over_the_limit_reads_why(bounded_api: ServedApi) -> None:
    answer = all_of(bounded_api.send_raw(post_bytes("/inference", b"x" * 4_000_000)))
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        (b"zz\r\nabc\r\n0\r\n\r\n", b"400"),
        (b'10\r\n{"text": "valid"}\r\n0\r\n\r\n', b"400"),
        (b"2000\r\n" + b'{"text": "valid"}'.ljust(0x2000) + b"\r\n0\r\n\r\n", b"413"),
    ],
    ids=["no number", "wrong length", "over the limit"],
)
def test_bad_chunks_are_refused(bounded_api: ServedApi, chunks: bytes, status: bytes) -> None:
    client = bounded_api.send_raw(CHUNKED_HEAD.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    client.sendall(chunks)
    assert all_of(client).startswith(b"HTTP/1.1 " + status)


def test_malformed_chunks_end_the_connection(bounded_api: ServedApi) -> None:
    client = bounded_api.send_raw(CHUNKED_HEAD + b"zz\r\n" + post_bytes("/inference", b"{}"))
    assert all_of(client).count(b"HTTP/1.1 ") == 1


def test_clients_that_do_not_close_hold_up_nobody(
    bounded_api: ServedApi, sockets: ExitStack
) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    clients = [sockets.enter_context(bounded_api.send_raw(request)) for _ in range(64)]
    for client in clients:  # waiting for one after the other would take two seconds each
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert answers_health(bounded_api)


def test_health_answers_while_every_thread_writes_to_a_client_that_does_not_read(
    tmp_path: Path, sockets: ExitStack
) -> None:
    with served(tmp_path / "log", MOCK_APP, USER_ROWS=1, MAX_INPUT_QSIZE=1) as api:
        page = b"GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n"
        for _ in range(1 + 1 + 16):
            sockets.enter_context(api.send_raw(page * 300))
        eventually(lambda: is_silent(api, "/v1/models"))
        assert answers_health(api)


def test_start_raises_the_limit_of_descriptors_as_far_as_it_may() -> None:
    code = (
        "import resource; "
        "from common.connections.worker import allowed_connections as allowed; "
        "limits = lambda: resource.getrlimit(resource.RLIMIT_NOFILE); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 2000)); "
        "print(allowed(1000), limits(), allowed(4096), limits())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert shown.stdout == "1000 (1256, 2000) 1744 (2000, 2000)\n"


def test_tls_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = {"GUNICORN_CMD_ARGS": "--certfile README.md --keyfile README.md"}
    with served(tmp_path / "log", MOCK_APP, start_timeout_s=None, **settings) as api:
        eventually(lambda: api.process.poll() is not None)
        assert "end TLS before it" in api.log
