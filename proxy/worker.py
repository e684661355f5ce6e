"""gunicorn's options and worker for the proxy, and its logging.

The worker is an event loop, which says what signals mean. gunicorn starts it, restarts it if it
dies, and hands it the listening socket; the rest of gunicorn is not used. Logs are text or JSON
lines on standard error; audit lines are apart from them.
"""

import asyncio
import logging
import logging.handlers
import os
import signal
import socket
import ssl
import sys
from typing import Any

import uvloop
from gunicorn.errors import AppImportError
from gunicorn.sock import ssl_context
from gunicorn.workers.base import Worker

from common import logs
from common.connections.sockets import find_dead_peers, host_and_port, port_faults
from common.connections.worker import SPARE_DESCRIPTORS, allowed_connections
from proxy.app import ProxyApp
from proxy.audit import AUDIT_LOGGER
from proxy.errors import StartupError
from proxy.settings import Settings

log = logging.getLogger(__name__)

# Time beyond DRAIN_TIMEOUT to record requests that were cut off. Then the worker is killed.
GRACE_S = 10
HEARTBEAT_S = 1.0  # interval of signs of life to gunicorn, which kills a silent worker
# Bytes that the kernel may buffer for a slow reader; by default it would be megabytes.
MAX_KERNEL_BYTES = 128 * 1024


class AuditFile(logging.handlers.WatchedFileHandler):
    """Appends lines to a file, which logrotate may move away. On a full disk, warns once until a
    line is written again, where logging would print a traceback each time. Any thread."""

    _has_failed = _had_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        self._had_failed, self._has_failed = self._has_failed, False
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        self._has_failed = True
        if not self._had_failed:
            error = sys.exc_info()[1]
            log.warning("AUDIT_FILE takes no lines: %s; make room, or set another", error)


def logging_config(settings: Settings) -> dict[str, Any]:
    """Returns a dictConfig for the whole process, including gunicorn's loggers."""
    audit: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    if settings.audit_file is not None:
        audit = {"()": AuditFile, "filename": str(settings.audit_file), "encoding": "utf-8"}
    config = logs.logging_config(settings.log_level, settings.log_format)
    config["formatters"]["audit"] = {"format": "%(message)s"}
    config["handlers"]["audit"] = audit | {"formatter": "audit"}
    config["loggers"][AUDIT_LOGGER] = {"level": "INFO", "handlers": ["audit"], "propagate": False}
    return config


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """Returns gunicorn's settings by name."""
    address = settings.proxy_host, settings.proxy_port

    def on_starting(arbiter: Any) -> None:
        if faults := port_faults(*address, ("PROXY_HOST", "PROXY_PORT")):
            sys.exit(str(StartupError(faults)))
        _take_over_reload(arbiter)

    return {
        "bind": [host_and_port(*address)],
        "workers": settings.proxy_processes,
        "worker_class": "proxy.worker.ProxyWorker",
        # The whole backlog is accepted at once, while no client is served.
        "backlog": 1024,
        "timeout": 120,
        "graceful_timeout": int(settings.drain_timeout) + GRACE_S,
        # Its default path is per user, so this gunicorn and the API's would conflict.
        "control_socket_disable": True,
        "logconfig_dict": logging_config(settings),
        "on_starting": on_starting,
    }


def _take_over_reload(arbiter: Any) -> None:
    """Makes SIGHUP reload the files in the running worker.

    gunicorn would start a new worker instead, which cuts streams that last longer than the drain,
    loses in-memory limits, and ends the service if a file has a mistake.
    """

    def pass_hangup_on() -> None:
        for pid in list(arbiter.WORKERS):
            os.kill(pid, signal.SIGHUP)

    arbiter.handle_hup = pass_hangup_on


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
