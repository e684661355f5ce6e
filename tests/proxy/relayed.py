"""Requests that go through the proxy to an upstream, and the beginning of what comes back."""

import socket
from typing import Any

import requests

from tests.proxy.support import DEADLINE_S, ProxyProcess, bearer


def post(proxy: ProxyProcess, path: str, **arguments: Any) -> requests.Response:
    options: dict[str, Any] = {"json": {"text": "hi"}, "timeout": DEADLINE_S}
    return requests.post(proxy.url + path, headers=bearer(), **(options | arguments))


def read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    return head
