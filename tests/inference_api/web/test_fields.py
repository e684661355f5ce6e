"""Bodies that are too large, malformed or cut, at every route that reads one."""

import re
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from gunicorn.http.errors import InvalidChunkSize

from inference_api._mock_inference_api_server import create_test_server
from inference_api.settings import Settings

LIMIT_BYTES = 2048
APP = create_test_server(Settings(max_content_length_bytes=LIMIT_BYTES))


def posts(app: Flask) -> list[str]:
    """The paths of all POST routes that read a body."""
    rules = [rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ())]
    paths = {re.sub("<.*?>", "falcon40b", rule) for rule in rules}
    bodiless = {"/drain", "/ping", "/bundle/load/falcon40b", "/bundle/unload/falcon40b"}
    return sorted(paths - bodiless - {"/api/event_logging/falcon40b"})


class BrokenChunks(BytesIO):
    def readinto(self, buffer: Any) -> int:
        raise InvalidChunkSize(b"zz")


def send(path: str, body: BytesIO) -> int:
    response = APP.test_client().post(
        path,
        input_stream=body,
        content_type="application/json",
        headers={"Transfer-Encoding": "chunked"},
        environ_overrides={"wsgi.input_terminated": True},
    )
    return response.status_code


@pytest.mark.parametrize("path", posts(APP))
def test_chunked_body_over_the_limit_is_refused_however_valid_its_beginning_is(path: str) -> None:
    assert send(path, BytesIO(b"{}".ljust(LIMIT_BYTES + 1))) == 413


@pytest.mark.parametrize("path", posts(APP))
def test_malformed_chunks_are_answered_with_400(path: str) -> None:
    assert send(path, BrokenChunks()) == 400


def test_chunked_body_of_just_the_limit_is_read() -> None:
    assert send("/v1/tokenize", BytesIO(b'{"prompt": "a"}'.ljust(LIMIT_BYTES))) == 503  # loading


def test_body_that_ends_before_its_length_is_refused() -> None:
    response = APP.test_client().post(
        "/v1/tokenize",
        input_stream=BytesIO(b'{"prompt": "a"}'),
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": "99", "wsgi.input_terminated": True},
    )
    assert response.status_code == 400
