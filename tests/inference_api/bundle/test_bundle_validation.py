"""`POST /bundle/validate`: the answer of the command, and no probe of the machine's files."""

import json
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from openapi_spec_validator import validate

from common.openapi import describe, rules_of
from inference_api.apis.openapi import API
from inference_api.bundle import routes as bundle_routes
from inference_api.bundle.check import check_bundle
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.loading import checkpoint
from inference_api.settings import Settings
from inference_api.settings.bundle_file import read_bundle
from inference_api.settings.model import EMBEDDED_MODEL
from inference_api.web.caller import register_requests
from inference_api.web.errors import register_error_handlers
from inference_api.web.left_aside import DEFAULT_RULES
from inference_api.web.whole_body import WholeBodyRequest

LIMITS = "version: 1\nmemory_limit: 1GiB\nfast_memory_limit: 1GiB\n"
SERVED = f"{LIMITS}experts:\n  - {{name: a, source: {EMBEDDED_MODEL}}}\n"


def app_of(settings: Settings) -> Flask:
    app = Flask("test")
    app.request_class = WholeBodyRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_content_length_bytes
    register_requests(app, DEFAULT_RULES, on_ignored=lambda field: None)
    register_error_handlers(app, on_error=lambda code: None)
    queue = InputQueue(1, {})
    backend = DecodeBackend(settings, queue, OutputQueues())
    app.register_blueprint(bundle_routes.create_blueprint(backend))
    return app


def of_one(source: object, **keys: object) -> str:
    member = {"name": "a", "source": str(source), **keys}
    return f"{LIMITS}experts: [{json.dumps(member)}]"


@pytest.fixture
def client() -> FlaskClient:
    return app_of(Settings()).test_client()


@pytest.fixture
def served_folder(tmp_path: Path) -> Path:
    """Of a bundle's file, with a model that it serves and one that it does not."""
    folder = (tmp_path / "served").resolve()
    folder.mkdir()
    for name in ("model", "other"):
        (folder / name).symlink_to(EMBEDDED_MODEL)
    (folder / "bundle.yaml").write_text(f"{LIMITS}experts: [{{name: a, source: ./model}}]")
    return folder


@pytest.fixture
def own_client(served_folder: Path) -> FlaskClient:
    """Of a server with a bundle."""
    bundle = read_bundle(served_folder / "bundle.yaml")
    return app_of(Settings(bundle=bundle)).test_client()


def ask(client: FlaskClient, text: str) -> dict[str, Any]:
    response = client.post("/bundle/validate", json={"bundle": text})
    assert response.status_code == 200
    answer: dict[str, Any] = response.get_json()
    return answer


def messages_of(answer: dict[str, Any]) -> list[str]:
    assert answer["valid"] is False
    return [each["message"] for each in answer["validations"] if each["level"] == "ERROR"]


def test_answer_is_that_of_the_check(client: FlaskClient, tmp_path: Path) -> None:
    file = tmp_path / "bundle.yaml"
    file.write_text(SERVED)
    answer = ask(client, SERVED)
    assert answer == check_bundle(read_bundle(file), Settings()).model_dump()
    assert answer["valid"] is True


def test_faults_of_the_file_are_all_told(client: FlaskClient) -> None:
    answer = ask(client, SERVED.replace("name: a", "name: auto, colour: red"))
    name, colour = messages_of(answer)
    assert name.startswith("experts[0].name: is the name of the router")
    assert colour.startswith("experts[0].colour: is not known; leave it out; known keys: name")
    assert answer["utilization"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "bundle: is missing; give it."),
        ({"bundle": ""}, "bundle: is empty; give 1 character or more."),
        ({"bundle": 3}, "bundle: is 3; give a text in quotes."),
        ({"bundle": "a" * 262_145}, "bundle: has more than 262144 characters; shorten it."),
        ({"bundle": SERVED, "full": True}, "full: is not known; leave it out."),
    ],
)
def test_bodies_without_a_bundle_are_refused(
    client: FlaskClient, body: dict[str, object], message: str
) -> None:
    response = client.post("/bundle/validate", json=body)
    assert response.status_code == 400
    assert response.get_json()["message"] == message


def test_yaml_body_is_refused(client: FlaskClient) -> None:
    response = client.post("/bundle/validate", data=SERVED, content_type="application/yaml")
    assert response.status_code == 400
    assert response.get_json()["message"] == "Request was not JSON"


FOREIGN = [
    "/etc/passwd",
    "/nowhere",
    "../secret",
    "owner/model",
    "~root/x",
    "var/models",
    ".",
    "..",
]


@pytest.mark.parametrize("source", FOREIGN)
def test_sources_elsewhere_are_not_looked_at(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(checkpoint, "describe", pytest.fail)
    pair = of_one(EMBEDDED_MODEL, draft={"source": source})
    heads = of_one(EMBEDDED_MODEL, speculation="medusa", medusa_heads=source)
    for text in (of_one(source), pair, heads):
        [message] = messages_of(ask(client, text))
        assert message.startswith(f"{source} is neither a source of this server nor in the folder")
        assert message.endswith("check it on its own machine with `hearth bundle validate`.")


@pytest.mark.parametrize("source", ["./model", "other", "./other/../other"])
def test_sources_in_the_folder_of_the_servers_bundle_are_checked(
    own_client: FlaskClient, source: str
) -> None:
    assert ask(own_client, of_one(source))["valid"] is True


@pytest.mark.parametrize("source", ["/etc/passwd", "../secret", "model/../../secret", ".", "//x"])
def test_sources_outside_of_that_folder_are_not(own_client: FlaskClient, source: str) -> None:
    [message] = messages_of(ask(own_client, of_one(source)))
    assert message.startswith(f"{source} is neither a source of this server nor in the folder")


@pytest.mark.parametrize("source", ["~root/x", "owner/model"])
def test_what_could_be_elsewhere_too_is_looked_for_in_that_folder_alone(
    own_client: FlaskClient, served_folder: Path, source: str
) -> None:
    [message] = messages_of(ask(own_client, of_one(source)))
    assert message.startswith(f"a: source={served_folder / source} is no folder; give")


def test_one_bundle_is_checked_at_a_time(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = Event(), Event()

    def slow(*arguments: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return check_bundle(*arguments)

    monkeypatch.setattr(bundle_routes, "check_bundle", slow)
    first = Thread(target=ask, args=(client, SERVED))
    first.start()
    try:
        assert began.wait(60)
        response = client.application.test_client().post(
            "/bundle/validate", json={"bundle": SERVED}
        )
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "5"
    finally:
        go_on.set()
        first.join()
    assert ask(client, SERVED)["valid"] is True


def test_route_is_described() -> None:
    document = describe(API, rules_of(app_of(Settings()), lambda rule: False))
    validate(document)
    schemas = document["components"]["schemas"]
    assert schemas["Validation"]["required"] == ["valid", "validations", "utilization"]
    assert "in the folder of its own bundle's file" in str(schemas["ValidateBody"])
