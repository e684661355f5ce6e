"""The weights service as part of the API's application."""

from pathlib import Path

from flask.testing import FlaskClient

from inference_api.inference_api_server import create_server
from inference_api.settings import Settings
from tests.weights.support import GENERATE, UPDATE, search, update
from weights.settings import Settings as WeightsSettings


def make_client(path: Path) -> FlaskClient:
    return create_server(Settings(), weights_settings=WeightsSettings(db_path=path)).test_client()


def test_weights_are_served_by_the_same_application(tmp_path: Path) -> None:
    client = make_client(tmp_path / "weights.db")
    assert client.post(UPDATE, json=update([0.5, 0.5], 1.0)).status_code == 200
    assert client.post(f"{GENERATE}/", json=search(2)).status_code == 200
    assert client.get("/weights/sessions/s").get_json()["num_observations"] == 1


def test_errors_keep_the_shape_of_the_weights_service(tmp_path: Path) -> None:
    refused = make_client(tmp_path / "weights.db").post(UPDATE, json={})
    assert refused.status_code == 422
    assert refused.get_json()["detail"][0]["loc"] == ["body", "number_of_nodes"]


def test_nothing_is_opened_until_it_is_used(tmp_path: Path) -> None:
    make_client(tmp_path / "weights.db").get("/health")
    assert not (tmp_path / "weights.db").exists()
