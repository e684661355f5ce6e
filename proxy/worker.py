"""gunicorn's worker for the proxy: an event loop, and what its signals mean.

gunicorn starts it, restarts it if it dies, and hands it the listening socket; the rest of gunicorn
is not used.
"""

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys

import uvloop
from gunicorn.errors import AppImportError
from gunicorn.sock import ssl_context
from gunicorn.workers.base import Worker

from common.connections.sockets import find_dead_peers
from common.connections.worker import SPARE_DESCRIPTORS, allowed_connections
from proxy.app import ProxyApp
from proxy.errors import StartupError

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0  # interval of signs of life to gunicorn, which kills a silent worker
# Bytes that the kernel may buffer for a slow reader; by default it would be megabytes.
MAX_KERNEL_BYTES = 128 * 1024


class ProxyWorker(Worker):
    """A worker whose application is not WSGI: it makes a protocol for each connection."""

    @property
    def _app(self) -> ProxyApp:
        app: object = self.wsgi
        assert isinstance(app, ProxyApp)
        return app

    def load_wsgi(self) -> None:
        """Raises AppImportError if the proxy cannot start: gunicorn prints it without traceback."""
        try:
            super().load_wsgi()
        except StartupError as error:
            raise AppImportError(str(error)) from error

    def init_signals(self) -> None:
        """Does nothing: the event loop handles signals later."""

    def run(self) -> None:
        uvloop.run(self._serve())
        sys.exit(0)

    async def _serve(self) -> None:
        app, stopping = self._app, asyncio.Event()
        descriptors_for(app)
        await app.start()
        draining: list[asyncio.Task[None]] = []

        def drain() -> None:
            if not draining:
                draining.append(asyncio.create_task(app.drain()))
                draining[0].add_done_callback(lambda _: stopping.set())

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, drain)
        loop.add_signal_handler(signal.SIGHUP, app.request_reload)
        for interrupt in (signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(interrupt, stopping.set)
        servers = [await self._listen(sock) for sock in self.sockets]
        while not stopping.is_set() and os.getppid() == self.ppid:
            self.notify()
            try:
                await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue
        for server in servers:
            server.close()
        await app.stop()

    async def _listen(self, listener: object) -> asyncio.Server:
        """Starts to serve. During a drain clients are still accepted, and get 503."""
        sock: socket.socket = listener.sock  # type: ignore[attr-defined]
        tune(sock, self._app.settings.client_timeout)
        tls: ssl.SSLContext | None = ssl_context(self.cfg) if self.cfg.is_ssl else None
        timeout_s = self._app.settings.head_timeout if tls else None
        return await asyncio.get_running_loop().create_server(
            self._app,
            sock=sock,
            ssl=tls,
            backlog=self.cfg.backlog,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=self._app.settings.client_timeout if tls else None,
        )


def tune(listener: socket.socket, timeout_s: float) -> None:
    """Sets options of the listening socket, which accepted connections inherit."""
    if listener.family == socket.AF_UNIX:
        return
    find_dead_peers(listener, timeout_s)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_KERNEL_BYTES)


def descriptors_for(app: ProxyApp) -> None:
    """Increases this process's limit of descriptors, or else lowers its number of connections."""
    # A request has a connection to its client and one to its upstream.
    wanted = app.crowd.max_connections + app.settings.proxy_requests
    allowed = allowed_connections(wanted)
    if allowed < wanted:
        app.crowd.max_connections = allowed // 2
        log.warning(
            "%d connections instead of PROXY_CONNECTIONS, as the limit of open files is %d",
            app.crowd.max_connections,
            allowed + SPARE_DESCRIPTORS,
        )
