"""Each service that runs alone describes itself: every route, validly, and as it answers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from flask import Flask
from openapi_spec_validator import validate

from cluster.controller.app import create_app as create_controller_app
from cluster.controller.cycle import ControllerParts
from cluster.controller.loop import Controller
from cluster.controller.optimizer import OptimizerClient
from common.operations import operation_of
from optimizer.app import create_app as create_optimizer_app
from optimizer.settings import Settings as OptimizerSettings
from tests.cluster.fleet import CountingReader, MemoryActuator, config, system, system_json
from tests.weights.memory_store import MemoryStore
from weights.app import create_app as create_weights_app
from weights.settings import Settings as WeightsSettings


def optimizer_app(folder: Path) -> Flask:
    return create_optimizer_app(
        OptimizerSettings(stateful=True, store_path=folder / "optimizer.db")
    )


def weights_app(_: Path) -> Flask:
    return create_weights_app(WeightsSettings(), MemoryStore())


def controller_app(folder: Path, optimizer_url: str = "http://127.0.0.1:1") -> Flask:
    document = system(system_json(rate=3000))
    keys = {"period_s": 0, "rollout_s": 0.1, "journal": folder / "cluster.jsonl"}
    parts = ControllerParts(
        config(document, **keys), document, OptimizerClient(optimizer_url), CountingReader()
    )
    controller = Controller(parts, MemoryActuator)
    app = create_controller_app(controller, document)
    app.extensions["controller"] = controller
    return app


Create = Callable[[Path], Flask]
APPS = [optimizer_app, weights_app, controller_app]


@pytest.fixture(params=APPS, ids=lambda create: create.__name__)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Flask:
    create: Create = request.param
    return create(tmp_path)


@pytest.fixture
def started_controller(tmp_path: Path) -> Iterator[Flask]:
    app = controller_app(tmp_path)
    app.extensions["controller"].start()
    yield app
    app.extensions["controller"].stop()


def test_every_route_is_described_in_a_valid_document(app: Flask) -> None:
    undescribed = [name for name, view in app.view_functions.items() if operation_of(view) is None]
    assert undescribed == [], "put @operation on their views"
    document = app.test_client().get("/openapi.json").get_json()
    validate(document)
    assert document["info"]["title"].startswith("Hearth ")
    assert "MessagesError" not in document["components"]["schemas"]  # the API's alone


def test_the_page_is_served_without_another_host(app: Flask) -> None:
    client = app.test_client()
    assert client.get("/docs").status_code == 308
    page = client.get("/docs/")
    assert page.status_code == 200
    assert app.test_client().get("/openapi.json").get_json()["info"]["title"] in page.text
    assert "https://" not in page.text
    with client.get("/docs/swagger-ui-bundle.js") as script:
        assert script.status_code == 200


def test_what_is_not_there_is_not_found_in_the_services_own_words(app: Flask) -> None:
    client = app.test_client()
    told = client.get("/openapi.json").get_json()["paths"]["/docs/{path}"]["get"]["responses"]
    answer = client.get("/docs/../nothing.js")
    assert answer.status_code == 404
    assert answer.mimetype in told["404"]["content"]


@pytest.mark.parametrize(
    ("verb", "path"),
    [("GET", "/state"), ("POST", "/invoke"), ("GET", "/health")],
)
def test_the_controller_answers_as_described(
    started_controller: Flask, verb: str, path: str
) -> None:
    client = started_controller.test_client()
    client.post("/invoke")
    answer = client.open(path, method=verb)
    assert answer.status_code == 200
    document = client.get("/openapi.json").get_json()
    told = document["paths"][path][verb.lower()]["responses"]["200"]
    assert_fits(answer.get_json(), told["content"]["application/json"]["schema"], document)


def assert_fits(answer: Any, schema: dict[str, Any], document: dict[str, Any]) -> None:
    jsonschema.validate(answer, {**schema, "components": document["components"]})
