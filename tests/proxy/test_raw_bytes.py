"""Requests broken at random, as raw bytes on the sockets of one proxy: each answer has its line in
the audit log, the upstream sees what clients sent and nothing else, and the process lives on.

More by command: `make fuzz`.
"""

import os
import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.proxy.support import (
    DEADLINE_S,
    ProxyProcess,
    ScriptedUpstream,
    make_token,
    running_proxy,
    until,
)

EXAMPLES = int(os.environ.get("RAW_FUZZ_EXAMPLES", "200"))
CLIENTS = 8
AUTH = f"Authorization: Bearer {make_token()}\r\n".encode()
NASTY = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"0\r\n\r\n", b"\r\n\r\n", b"ffffffffffffffff",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Upgrade: h2c\r\n", b"-1",
    b"Connection: upgrade\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b";x=" + b"y" * 300,
)  # fmt: skip
ANSWER = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) [^\r]*\r\n")


def sound(number: int, dice: random.Random) -> bytes:
    """A request whose target says whose it is."""
    body = dice.randbytes(dice.choice((0, 3, 60, 5000)))
    head = b"POST /fuzz/%d HTTP/1.1\r\nHost: p\r\n" % number + dice.choice((AUTH, AUTH, b""))
    match dice.randrange(5):
        case 0:
            return head.replace(b"POST", b"GET") + b"\r\n"
        case 1:
            return head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n"
        case 2 | 3:
            size = dice.randint(1, 2000)
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        case _:
            return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def broken(number: int, dice: random.Random) -> bytes:
    data = b"".join(sound(number, dice) for _ in range(dice.choice((1, 1, 2, 5))))
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at, length = dice.randrange(len(data) + 1), dice.randrange(1, 60)
        data = dice.choice(
            (
                data[:at] + dice.randbytes(1) + data[at + 1 :],
                data[:at] + data[at + length :],
                data[:at] + dice.choice(NASTY) + data[at:],
                data[: at + length] + data[at:],
                data[:at] or b"x",
            )
        )
    return data


def statuses(port: int, number: int) -> list[bytes]:
    """Of the answers that one client gets until nothing comes any more."""
    dice, received = random.Random(number), b""
    data = broken(number, dice)
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        with suppress(ConnectionError):
            if dice.randrange(2):
                at = dice.randrange(len(data) + 1)
                sock.sendall(data[:at])
                data = data[at:]
            sock.sendall(data)
        with suppress(ConnectionError):
            while piece := sock.recv(65536):
                received += piece
    return ANSWER.findall(received)


def num_lines(proxy: ProxyProcess) -> int:
    return len([line for line in proxy.audit() if line["outcome"] != "client_gone"])


@pytest.mark.timeout(max(600, EXAMPLES))
def test_each_answer_has_its_line_and_nothing_is_made_up(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(lambda peer: peer.reply(b"ok"))
    impatience: dict[str, Any] = {
        "HEAD_TIMEOUT": "0.15",
        "BODY_TIMEOUT": "0.15",
        "KEEPALIVE_TIMEOUT": "0.15",
    }
    with running_proxy(tmp_path, upstream.url, **impatience) as proxy:
        (worker,) = psutil.Process(proxy.process.pid).children()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda number: statuses(proxy.port, number), range(EXAMPLES)))
        assert not [number for number, found in enumerate(answers) if b"500" in found]
        num_answers = sum(map(len, answers))
        until(lambda: num_lines(proxy) >= num_answers, "the lines")
        assert num_lines(proxy) == num_answers
        assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).ok
        assert psutil.Process(proxy.process.pid).children() == [worker]
        at_rest = ("\nhearth_proxy_in_flight 0.0", "\nhearth_proxy_connections 0.0")
        until(lambda: all(line in proxy.metric("/metrics") for line in at_rest), "rest")
        for sign in ("Traceback", "never retrieved", "failed"):
            assert sign not in proxy.log()
    assert num_answers > EXAMPLES
    forwarded = [line for line in proxy.audit() if "upstream" in line]
    assert len(upstream.requests) == len(forwarded)
    assert all("authorization" not in request.headers for request in upstream.requests)
    upstream.stop()
