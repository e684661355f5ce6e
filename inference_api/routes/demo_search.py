"""A demo of the weights search on this machine: how far it is, start and stop."""

from flask import Blueprint, Response, jsonify
from pydantic import Field

from common.errors import Error
from common.operations import operation
from inference_api.bodies.fields import Body, parse
from inference_api.demo_search import DemoSearch, DemoState
from inference_api.routes.caller import json_body

PATH = "/weights/demo"
MAX_TRIALS = 20


class DemoBody(Body):
    max_trials: int = Field(ge=1, le=MAX_TRIALS, description="It may end with fewer.")


def create_blueprint(demo: DemoSearch) -> Blueprint:
    blueprint = Blueprint("demo_search", __name__)

    @blueprint.get(PATH)
    @operation("The demo search that runs or ran last.", {200: DemoState})
    def state() -> Response:
        return jsonify(demo.state)

    @blueprint.post(PATH)
    @operation(
        "Search for a split over three ranks on this machine; a session shows what is found.",
        {202: DemoState, 400: Error, 409: Error, 503: Error},
        DemoBody,
    )
    def start() -> tuple[Response, int]:
        body = parse(DemoBody, json_body())
        return jsonify(demo.start(body.max_trials)), 202

    @blueprint.delete(PATH)
    @operation("Have the demo search end.", {202: DemoState})
    def stop() -> tuple[Response, int]:
        """Idempotent."""
        return jsonify(demo.stop()), 202

    return blueprint
