"""Bodies that cannot be read, at every service: the client's faults are its own, ours are not."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from gunicorn.http.errors import ChunkMissingTerminator, InvalidHeader, NoMoreData
from werkzeug.exceptions import ClientDisconnected

from inference_api._mock_inference_api_server import create_test_server
from inference_api.settings import Settings
from optimizer.app import create_app
from optimizer.settings import Settings as OptimizerSettings
from tests.weights.support import UPDATE, new_client

CLIENTS_FAULTS = [
    NoMoreData(),
    ChunkMissingTerminator(b"x"),
    InvalidHeader("of a trailer"),
    OSError("Invalid chunk header"),
    ClientDisconnected(),
]
OUR_FAULTS = [RuntimeError, AttributeError, KeyError, MemoryError]


class Stream(BytesIO):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self.error

    def readinto(self, buffer: Any) -> int:
        raise self.error


@pytest.fixture(scope="module", params=["inference", "weights in it", "optimizer", "weights"])
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FlaskClient, str, int]:
    """A service, a route of it that takes a body, and the status of one that is refused."""
    folder: Path = tmp_path_factory.mktemp("optimizer")
    if request.param == "optimizer":
        app = create_app(OptimizerSettings(store_path=folder / "o.db"))
        return app.test_client(), "/optimizeOne", 400
    if request.param == "weights":
        client = new_client()
        client.application.config["PROPAGATE_EXCEPTIONS"] = False  # as when served
        return client, UPDATE, 422
    api = create_test_server(Settings()).test_client()
    return api, "/v1/completions" if request.param == "inference" else UPDATE, 400


def answer(door: tuple[FlaskClient, str, int], error: Exception) -> tuple[int, str]:
    client, path, _ = door
    response = client.post(
        path,
        input_stream=Stream(error),
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True},
    )
    return response.status_code, response.text


@pytest.mark.parametrize("error", CLIENTS_FAULTS, ids=repr)
def test_what_the_client_cut_or_wrote_wrongly_is_refused(
    door: tuple[FlaskClient, str, int], error: Exception
) -> None:
    status, text = answer(door, error)
    assert status == door[2]
    assert "malformed or cut short" in text


@pytest.mark.parametrize("kind", OUR_FAULTS)
def test_fault_of_ours_is_a_500_that_tells_nothing_of_it(
    door: tuple[FlaskClient, str, int], kind: type[Exception]
) -> None:
    status, text = answer(door, kind("secret of this test"))
    assert status == 500
    assert "secret" not in text
