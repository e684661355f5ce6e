"""The mock server with a decode step that waits, one that dies, and a model that does not load; and
a server whose members are long in loading."""

import os
import time
from pathlib import Path
from unittest.mock import patch

from flask import Flask

from inference_api._mock_inference_api_server import create_test_server
from inference_api.bundle.loader import LoaderEvent, MemberLoader
from inference_api.core.status import Phase
from inference_api.inference_api_server import create_server, server_of

FATAL_TEXT = "crash!"
POLL_S = 0.005


def create_held_server() -> Flask:
    """Gives every row its first token, and the others once the file RELEASE_FILE is there."""
    app = create_test_server()
    backend = server_of(app).backend
    decode = backend.decode
    release_file = Path(os.environ["RELEASE_FILE"])

    def decode_when_released() -> None:
        rows = [row for row in backend.users if row is not None]
        if rows and all(row.generated for row in rows) and not release_file.exists():
            time.sleep(POLL_S)
        else:
            decode()

    patch.object(backend, "decode", decode_when_released).start()
    return app


def create_crashing_server() -> Flask:
    """Dies when it has echoed a text up to `FATAL_TEXT` and a request waits in the queue."""
    app = create_test_server()
    server = server_of(app)
    decode = server.backend.decode

    def decode_or_die() -> None:
        rows = [row for row in server.backend.users if row is not None]
        if not any(bytes(row.generated).endswith(FATAL_TEXT.encode()) for row in rows):
            decode()
        elif len(server.backend.input_queue) == 0:
            time.sleep(POLL_S)
        else:
            raise RuntimeError("the device has left")

    patch.object(server.backend, "decode", decode_or_die).start()
    return app


def create_server_that_dies_draining() -> Flask:
    """Its decode thread dies at the first step after it was asked to drain."""
    app = create_test_server()
    backend = server_of(app).backend
    decode = backend.decode

    def decode_or_die() -> None:
        if backend.phase is Phase.DRAINING:
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


def create_slow_loading_server() -> Flask:
    """The real one. Brings members of its bundle into memory once the file RELEASE_FILE is there,
    but for those that are called `quick`."""
    load = MemberLoader._load
    release_file = Path(os.environ["RELEASE_FILE"])

    def load_when_released(loader: MemberLoader, name: str) -> LoaderEvent:
        while name != "quick" and not release_file.exists():
            time.sleep(POLL_S)
        return load(loader, name)

    patch.object(MemberLoader, "_load", load_when_released).start()
    return create_server()
