"""Bodies and clients for the tests of the weights service."""

from typing import Any

from flask.testing import FlaskClient

from tests.weights.memory_store import MemoryStore
from weights.app import create_app
from weights.settings import Settings
from weights.store import WeightStore

UPDATE, GENERATE, DELETE = "/weights_update", "/weights_gen", "/weights_update_delete"


def new_client(store: WeightStore | None = None, **settings: Any) -> FlaskClient:
    app = create_app(Settings(**settings), store or MemoryStore())
    app.config["PROPAGATE_EXCEPTIONS"] = True
    return app.test_client()


def search(n: int = 2, **fields: Any) -> dict[str, Any]:
    return {"session_id": "s", "number_of_nodes": n, "max_weightings": [1.0] * n, **fields}


def update(weights: list[float], metric: float, **fields: Any) -> dict[str, Any]:
    return search(len(weights), weights=weights, performance_metric=metric, **fields)
