"""The API's application in the process of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask
from flask.testing import FlaskClient

from inference_api.inference_api_server import server_of
from lab.kit.servers import eventually


@contextmanager
def started(app: Flask) -> Iterator[FlaskClient]:
    """Once its models are ready; stopped afterwards."""
    server = server_of(app)
    server.start()
    try:
        eventually(lambda: server.backend.phase == "ready")
        yield app.test_client()
    finally:
        server.stop()
