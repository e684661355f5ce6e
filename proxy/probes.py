"""/health, /ready and /metrics of the proxy itself.

The main port answers the first two without a token, for load balancers. The metrics port answers
all three, also during a drain. Event loop only.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.connections.answers import content_headers
from common.logs import new_request_id
from proxy.clients.client import ClientConnection, Exchange
from proxy.clients.crowd import Crowd
from proxy.errors import BadMethod, ProxyError
from proxy.settings import Settings

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
NO_PAGE = b"This port has /metrics, /health and /ready.\n"

Answer = tuple[int, str, bytes]  # status, content type, body


@dataclass(slots=True, eq=False)
class MetricsPort:
    """The metrics port. Each of several processes takes the next free one. Owned by the app, which
    starts and stops it, and sweeps its connections."""

    settings: Settings
    probe: Callable[[str], Answer | None]  # answers the paths of probes
    registry: CollectorRegistry
    crowd: Crowd = field(default_factory=lambda: Crowd(MAX_CONNECTIONS, MAX_CONNECTIONS))
    is_draining: bool = False
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts to serve. A taken port is logged and not fatal, because the proxy matters more."""
        loop, settings = asyncio.get_running_loop(), self.settings
        host, first = settings.proxy_metrics_host, settings.proxy_metrics_port
        for port in range(first, first + settings.proxy_processes):
            try:
                self._server = await loop.create_server(
                    lambda: ClientConnection(self.crowd, self, settings), host, port
                )
                return
            except OSError as error:
                failure = error
        log.error("no metrics on %s:%d: %s", host, first, failure)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for member in self.crowd.members():
            member.evict()

    def begin(self, exchange: Exchange) -> None:
        exchange.start(self._answer(exchange))

    def refuse(self, error: ProxyError, *, is_recorded: bool = True) -> bytes:
        return error.last_answer(new_request_id())

    async def _answer(self, exchange: Exchange) -> None:
        method, path = exchange.head.method, exchange.head.target.partition("?")[0]
        answer = self.probe(path) or (404, "text/plain", NO_PAGE)
        if method not in ("GET", "HEAD"):
            error = BadMethod(method, path, "GET, HEAD")
            exchange.answer(error.status, *error.answer(new_request_id()))
        else:
            if path == "/metrics":
                page = await asyncio.to_thread(generate_latest, self.registry)
                answer = 200, CONTENT_TYPE_LATEST, page
            status, content_type, body = answer
            exchange.answer(status, content_headers(content_type, body), body)
        exchange.end()
