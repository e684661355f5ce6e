"""The real optimizer's service, in a thread."""

from collections.abc import Iterator
from threading import Thread

import pytest
from werkzeug.serving import make_server

from optimizer.app import create_app
from optimizer.settings import Settings


@pytest.fixture(scope="session")
def optimizer_url() -> Iterator[str]:
    server = make_server("127.0.0.1", 0, create_app(Settings()), threaded=True)
    thread = Thread(target=server.serve_forever, name="optimizer")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(timeout=60)
    server.server_close()
