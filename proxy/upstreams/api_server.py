"""Requests to a Kubernetes API server, with the service account of the proxy's pod.

Plain GETs, because one list and one watch do not need the official client's hundreds of modules.
"""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from proxy.errors import DiscoveryFailed

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
MAX_REFUSAL_BYTES = 64 * 1024
REMEDIES = {
    401: "the token is not accepted; is the service account still there?",
    403: "bind the Role of deploy/kubernetes/base/proxy.yaml to the service account",
}


class ApiServer:
    """A client for one thread. `close`, from any thread, ends its waits. It uses the account's
    token and certificate over https, and neither over http (`kubectl proxy`)."""

    def __init__(self, url: str, account: Path) -> None:
        """Raises OSError for an unusable account."""
        parts = urlsplit(url)
        self._base, self._token_file = parts.path.rstrip("/"), account / "token"
        self._is_tls = parts.scheme == "https"
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._is_tls:
            context = ssl.create_default_context(cafile=account / "ca.crt")
            kind = partial(http.client.HTTPSConnection, context=context)
            self._token_file.read_text("ascii")
        self._connection = partial(kind, parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_closed = False

    @contextmanager
    def get(
        self, path: str, silence_s: float = ANSWER_TIMEOUT_S
    ) -> Iterator[http.client.HTTPResponse]:
        """Returns an answer with status 200, whose body may pause for at most `silence_s`. Raises
        DiscoveryFailed for another status, and OSError or HTTPException."""
        connection = self._connected()
        try:
            connection.request("GET", self._base + path, headers=self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(response)
            if self._socket is not None:
                self._socket.settimeout(silence_s)
            yield response
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._socket is not None:
                with suppress(OSError):  # the peer may have gone
                    # Shuts down the plain socket, because TLS belongs to the reading thread.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _connected(self) -> http.client.HTTPConnection:
        connection = self._connection()
        connection.connect()
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        with self._lock:
            if self._is_closed:
                connection.close()
                raise OSError("closed")
            self._socket = connection.sock
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._is_tls:
            # Read each time, because the kubelet renews it within the hour.
            token = self._token_file.read_text("ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _refusal(response: http.client.HTTPResponse) -> DiscoveryFailed:
    status = response.status
    try:
        answer = json.loads(response.read(MAX_REFUSAL_BYTES))
        message = str(answer["message"])[:512]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = response.reason
    remedy = REMEDIES.get(status)
    return DiscoveryFailed(
        f"{status}: {message}" + (f"; {remedy}" if remedy else ""), is_gone=status == 410
    )
