"""What docs/optimizer.md shows is what the program answers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from optimizer.app import create_app
from optimizer.settings import Settings

DOCS = (Path(__file__).parents[2] / "docs" / "optimizer.md").read_text()


def block(name: str) -> Any:
    found = re.search(rf"```json {name}\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return create_app(Settings(stateful=True, store_path=tmp_path / "o.db")).test_client()


def assert_shown(shown: Any, answered: Any) -> None:
    """Every value shown is answered, to the digits shown."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert_shown(value, answered[key])
    elif isinstance(shown, float):
        assert answered == pytest.approx(shown, rel=2e-5)
    else:
        assert answered == (pytest.approx(shown) if isinstance(shown, int) else shown)


def test_worked_example_is_answered_as_shown(client: FlaskClient) -> None:
    assert_shown(block("answer"), client.post("/optimizeOne", json=block("system")).get_json())
    assert_shown(block("size-answer"), client.post("/size", json=block("size")).get_json())
    candidates = client.get("/explain/Premium-granite_13b").get_json()["candidates"]
    assert [(c["numReplicas"], c["cost"], c["value"]) for c in candidates] == [
        (4, 160, 120), (3, 75, 46.5),
    ]  # fmt: skip


def test_every_setting_is_documented() -> None:
    for field in Settings.model_fields.values():
        assert f"`{field.validation_alias}`" in DOCS


def test_every_route_is_documented(client: FlaskClient) -> None:
    routes = {rule.rule.split("/")[1] for rule in client.application.url_map.iter_rules()}
    named = {r for r in routes if not re.match(r"(get|set|add|remove)[A-Z]|static|health", r)}
    assert [route for route in sorted(named) if f"/{route}" not in DOCS] == []


def test_service_curve_is_answered_as_shown(client: FlaskClient) -> None:
    assert_shown(block("curve-answer"), client.post("/analyze", json=block("curve")).get_json())
