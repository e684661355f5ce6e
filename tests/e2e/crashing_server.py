"""The mock server with a decode step that dies on a word, and one whose model does not load."""

from unittest.mock import patch

from flask import Flask

from inference_api._mock_inference_api_server import create_test_server
from inference_api.inference_api_server import server_of

FATAL_TEXT = "crash!"


def create_crashing_server() -> Flask:
    """Dies when it has echoed a text up to and including `FATAL_TEXT`."""
    app = create_test_server()
    backend = server_of(app).backend
    decode = backend.decode

    def decode_or_die() -> None:
        for row in backend.users:
            if row is not None and bytes(row.generated).endswith(FATAL_TEXT.encode()):
                raise RuntimeError("the device has left")
        decode()

    patch.object(backend, "decode", decode_or_die).start()
    return app


def create_unloadable_server() -> Flask:
    app = create_test_server()

    def load_model_and_tokenizer() -> None:
        raise FileNotFoundError("no such weights")

    backend = server_of(app).backend
    patch.object(backend, "load_model_and_tokenizer", load_model_and_tokenizer).start()
    return app
