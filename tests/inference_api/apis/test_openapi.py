"""The description of the API has every route, holds to OpenAPI 3.1, and says what models check."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from openapi_spec_validator import validate
from pydantic import BaseModel, SecretStr

from common import __version__
from common.openapi import Rule, describe
from common.operations import Operation, operation_of
from inference_api.apis.openapi import API
from inference_api.inference_api_server import create_server
from inference_api.settings import Settings
from lab.kit.servers import ROOT
from optimizer.settings import Settings as OptimizerSettings
from weights.settings import Settings as WeightsSettings


def make_app(path: Path, is_stateful: bool = True, **settings: Any) -> Flask:
    optimizer = OptimizerSettings(stateful=is_stateful, store_path=path / "optimizer.db")
    weights = WeightsSettings(db_path=path / "weights.db")
    return create_server(Settings(**settings), optimizer, weights)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    return make_app(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture(scope="module")
def document(client: FlaskClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").get_json()
    return document


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield f"{verb.upper()} {path}", operation


def test_every_route_is_described(app: Flask) -> None:
    views = app.view_functions.items()
    undescribed = [endpoint for endpoint, view in views if operation_of(view) is None]
    assert undescribed == [], "put @operation on their views"


def test_only_what_is_there_is_shown(tmp_path: Path) -> None:
    client = make_app(tmp_path, is_stateful=False).test_client()
    document = client.get("/openapi.json").get_json()
    assert "/optimizeOne" in document["paths"]
    assert "/optimize" not in document["paths"]  # of the stateful mode


def test_document_is_valid_openapi_3_1(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1.")
    ids = [operation["operationId"] for _, operation in operations_of(document)]
    assert len(ids) == len(set(ids))


def test_version_is_the_newest_of_the_changelog(document: dict[str, Any]) -> None:
    versions = re.findall(
        r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert document["info"]["version"] == __version__ == versions[0]


def test_every_answer_has_a_request_id_and_may_be_a_failure(document: dict[str, Any]) -> None:
    for key, operation in operations_of(document):
        assert "500" in operation["responses"], key
        for response in operation["responses"].values():
            assert "X-Request-Id" in response["headers"], key


def test_parameters_of_a_path_are_those_of_its_rule(document: dict[str, Any]) -> None:
    for key, operation in operations_of(document):
        in_path = {item["name"] for item in operation["parameters"] if item["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", key)), key
        assert ("404" in operation["responses"]) >= bool(in_path), key


def test_native_body_says_what_it_is_read_from(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["NativeBody"]["properties"]
    integer, text, null = properties["max_tokens"]["anyOf"]
    assert integer == {"type": "integer", "minimum": 1, "maximum": 2048}
    assert re.fullmatch(text["pattern"], " 40 ")
    assert null == {"type": "null"}
    assert {"const": 0.0} in properties["temperature"]["anyOf"]


def test_openai_body_comes_from_the_model_that_validates(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["ChatBody"]
    assert schema["required"] == ["messages"]
    assert "additionalProperties" not in schema  # what is not known is left aside
    assert schema["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    assert "user" in schema["properties"]  # ignored, yet accepted
    assert schema["properties"]["functions"]["enum"] == [[], None]  # not served


def test_tokens_are_asked_for_where_they_are_checked(tmp_path: Path) -> None:
    secret = SecretStr("x" * 32)
    client = make_app(tmp_path, jwt_secret=secret).test_client()
    document = client.get("/openapi.json").get_json()
    closed = document["paths"]["/v1/models"]["get"]
    assert closed["security"] == [{"token": []}]
    assert "401" in closed["responses"]
    assert "security" not in document["paths"]["/health"]["get"]
    assert client.get("/v1/models").status_code == 401
    assert client.get("/docs/").status_code == 200


def test_page_needs_no_other_host(client: FlaskClient) -> None:
    page = client.get("/docs/")
    assert page.status_code == 200
    assert "/openapi.json" in page.text
    assert '"validatorUrl": null' in page.text
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(files) >= 4
    for file in files:
        assert file.startswith("/docs/")
        with client.get(file) as response:
            assert response.status_code == 200


def test_equal_names_of_two_packages_stay_apart() -> None:
    def model(module: str) -> type[BaseModel]:
        return type("Same", (BaseModel,), {"__annotations__": {module: int}, "__module__": module})

    first, second = model("one"), model("two")
    rules = [
        Rule("GET", "/a", "t", False, Operation("a", {200: first})),
        Rule("GET", "/b", "t", False, Operation("b", {200: second})),
    ]
    schemas = describe(API, rules)["components"]["schemas"]
    assert [list(schema["properties"]) for name, schema in schemas.items() if "Same" in name] == [
        ["one"],
        ["two"],
    ]
