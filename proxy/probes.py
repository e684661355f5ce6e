"""/health, /ready and /metrics of the proxy itself.

The main port answers the first two without a token, for load balancers. The metrics port answers
all three, in a thread of its own, also during a drain.
"""

import json
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.connections.answers import content_headers, phrase_of
from proxy.settings import Settings

log = logging.getLogger(__name__)

CLIENT_TIMEOUT_S = 5.0
POLL_S = 0.1  # interval at which the server notices `stop`

Answer = tuple[int, str, bytes]  # status, content type, body


def health(is_alive: bool) -> Answer:
    if is_alive:
        return 200, "text/plain; charset=utf-8", b"OK"
    return 500, "text/plain; charset=utf-8", b"a part of the proxy has died"


def readiness(why_not: str | None) -> Answer:
    body = json.dumps({"status": why_not or "ready"}).encode()
    return 503 if why_not else 200, "application/json", body


class ControlServer:
    """The metrics port. Each of several processes takes the next free one. Owned by the app, which
    starts and stops it."""

    def __init__(
        self,
        settings: Settings,
        probe: Callable[[str], Answer | None],
        registry: CollectorRegistry,
    ) -> None:
        """`probe` answers the paths of probes, on any thread."""
        first_port = settings.proxy_metrics_port
        self._host = settings.proxy_metrics_host
        self._ports = range(first_port, first_port + settings.proxy_processes)
        self._probe = probe
        self._registry = registry
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to serve. A taken port is logged and not fatal, because the proxy matters more."""
        for port in self._ports:
            try:
                self._server = make_server(self._host, port, self._serve, _Server, _QuietHandler)
                break
            except OSError as error:
                failure = error
        if self._server is None:
            log.error("no metrics on %s:%d: %s", self._host, self._ports[0], failure)
            return
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="proxy-control", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(timeout_s)
            self._server.server_close()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        answer = self._probe(path)
        if path == "/metrics":
            answer = 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        status, content_type, body = answer or (404, "text/plain", b"")
        start_response(f"{status} {phrase_of(status)}", content_headers(content_type, body))
        return [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints a traceback, but not of a client that is silent or has left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _QuietHandler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because scrapes come every few seconds."""
