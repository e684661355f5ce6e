"""gunicorn's threaded worker, with four habits a streaming proxy needs.

Everything else is gunicorn's. The methods overridden here are the whole of what we assume about
its insides; `tests/proxy/test_life_cycle.py` fails if an upgrade changes them.
"""

import signal
from types import FrameType
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

from proxy.app import ProxyApp


class ProxyWorker(ThreadWorker):
    """One per process, as the app's tables are in memory."""

    @property
    def _app(self) -> ProxyApp:
        assert isinstance(self.wsgi, ProxyApp)
        return self.wsgi

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGHUP, self._reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: keep answering (503, at once) until the streams are over, then leave.

        gunicorn would stop accepting right away, and the kernel would go on taking connections
        that nobody ever answers.
        """
        if not isinstance(self.wsgi, ProxyApp):  # still booting: nothing to drain
            super().handle_exit(sig, frame)
            return
        self.wsgi.begin_drain(lambda: self.method_queue.defer(self._leave))

    def _leave(self) -> None:
        self.alive = False

    def _reload(self, sig: int, frame: FrameType | None) -> None:
        self._app.request_reload()

    def handle(self, conn: TConn) -> Any:
        """One request, its head within CLIENT_TIMEOUT; a finished connection is closed here.

        Closing lingers up to two seconds for a client that does not close its side, and gunicorn
        does that on the thread that accepts everyone else.
        """
        if not conn.initialized:
            self._app.greet(conn.sock)
        self._app.heads.begin(conn)
        try:
            outcome = super().handle(conn)
        finally:
            self._app.heads.end(conn)
        if outcome is False:
            conn.close(graceful=True)
            # The accepting thread closes it once more. On a closed socket that raises, and
            # gunicorn then counts the connection as gone twice.
            conn.close = _closed_already  # type: ignore[method-assign]
        return outcome

    def handle_request(self, req: Any, conn: TConn) -> Any:
        self._app.heads.end(conn)
        if self._app.must_close(req.method, req.uri):
            req.force_close()
        return super().handle_request(req, conn)


def _closed_already(graceful: bool = False) -> None:
    pass
