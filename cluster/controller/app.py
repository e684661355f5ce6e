"""The controller over HTTP: its state, and `POST /invoke`. Request threads.

It listens on loopback unless the cluster's file says otherwise, and trusts every caller except web
pages of other origins.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from threading import BoundedSemaphore

from flask import Flask, Response, jsonify, send_from_directory
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from cluster.controller.gauges import ControllerGauges
from cluster.controller.journal import (
    CycleJson,
    DecisionJson,
    Json,
    UnplacedJson,
    cycle_json,
    unplaced_json,
)
from cluster.controller.loop import Controller, ControllerSnapshot
from cluster.controller.rollout import GroupJson, groups_json
from cluster.errors import ClusterError
from cluster.replicas import ReplicaState
from cluster.system import SystemDocument
from common.errors import Error, error_body
from common.openapi import Application, add_description
from common.operations import operation
from common.web_pages import protect

INVOKE_S = 110.0  # less than gunicorn's own timeout
MAX_INVOKES = 4  # requests waiting for a cycle; leaves threads for requests answered at once
PAGE = Path(__file__).parent / "page"


class Health(TypedDict):
    status: str


class ServerState(TypedDict):
    """`target` has the service levels of the optimizer's document; `replicas` counts by state."""

    target: Json
    plan: list[GroupJson]
    replicas: dict[str, int]


class ReplicaJson(TypedDict):
    name: str
    server: str
    accelerator: str
    user_rows: int
    state: ReplicaState
    url: str | None
    why: str


class SleeperJson(TypedDict):
    """A server that may scale to 0. Requests for `models`, or for any model if empty, wake it. If
    woken now, it is ready in `ready_in_s`; null before its first start."""

    server: str
    models: list[str]
    ready_in_s: float | None


class SleepersJson(TypedDict):
    servers: list[SleeperJson]


class StateJson(TypedDict):
    fault: str
    servers: dict[str, ServerState]
    replicas: list[ReplicaJson]
    unplaced: list[UnplacedJson]
    cycle: CycleJson | None
    decisions: list[DecisionJson]


def create_app(
    controller: Controller, system: SystemDocument, host_names: Collection[str] = ()
) -> Flask:
    """`host_names` are the host names allowed in a Host header. IP addresses are always allowed."""
    app = Flask(__name__, static_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    protect(app, *host_names)
    app.register_error_handler(HTTPException, _http_error)
    _add_page(app)
    _add_probes(app, controller)
    targets = {name: system.target(name) for name in system.servers}

    @app.get("/state")
    @operation("Servers, plans, replicas and the last cycle.", {200: StateJson})
    def state() -> Response:
        return jsonify(state_of(controller.snapshot, targets))

    invokes = BoundedSemaphore(MAX_INVOKES)

    @app.post("/invoke")
    @operation("Make a cycle now.", {200: CycleJson, 403: Error, 503: Error, 504: Error})
    def invoke() -> Response:
        if not invokes.acquire(blocking=False):
            why = f"{MAX_INVOKES} requests wait for a cycle already; ask again once it is made"
            return _refusal(503, why, "busy")
        try:
            return jsonify(cycle_json(controller.invoke(INVOKE_S)))
        except ClusterError as error:
            return _refusal(503, str(error), "no_cycle")
        except TimeoutError as error:
            return _refusal(504, str(error), "no_cycle_yet")
        finally:
            invokes.release()

    _add_sleepers(app, controller)
    add_description(app, CONTROLLER)
    return app


def _add_page(app: Flask) -> None:
    @app.get("/")
    @operation("The same as /state as a page.", {200: "text/html"})
    def page() -> Response:
        return send_from_directory(PAGE, "index.html")

    @app.get("/assets/<name>")
    @operation("A file of the page.", {200: "*/*"})
    def assets(name: str) -> Response:
        return send_from_directory(PAGE, name)


def _add_sleepers(app: Flask, controller: Controller) -> None:
    def sleeper_json(server: str) -> SleeperJson:
        models, ready_in_s = controller.sleepers[server], controller.ready_in_s(server)
        return {"server": server, "models": models, "ready_in_s": ready_in_s}

    @app.get("/sleepers")
    @operation("Servers that may have no replicas, for the proxy.", {200: SleepersJson})
    def sleepers() -> Response:
        return jsonify(servers=[*map(sleeper_json, controller.sleepers)])

    @app.post("/wake/<path:server>")
    @operation("A request waits for this server.", {200: SleeperJson, 403: Error, 404: Error})
    def wake(server: str) -> Response:
        if server not in controller.sleepers:
            known = ", ".join(controller.sleepers) or "none"
            return _refusal(404, f"{server[:200]!r} is none that sleeps; known: {known}", "unknown")
        controller.wake(server)
        return jsonify(sleeper_json(server))


def _add_probes(app: Flask, controller: Controller) -> None:
    registry = CollectorRegistry()
    registry.register(ControllerGauges(lambda: controller.snapshot))

    @app.get("/health")
    @operation("Whether the controller's thread lives.", {200: Health, 500: Error})
    def health() -> Response:
        if controller.is_alive:
            return jsonify(status="ok")
        why = controller.snapshot.fault or "the controller's thread has ended"
        return _refusal(500, why, "ended")

    @app.get("/metrics")
    @operation("Gauges, for Prometheus.", {200: "text/plain"})
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def state_of(now: ControllerSnapshot, targets: dict[str, Json]) -> StateJson:
    """Returns the answer of `GET /state`."""
    cycle = None if now.cycle is None else cycle_json(now.cycle)
    return {
        "fault": now.fault,
        "servers": {
            name: {
                "target": target,
                "plan": groups_json({g: n for g, n in now.plan.items() if g.server == name}),
                "replicas": Counter(str(r.state) for r in now.replicas if r.group.server == name),
            }
            for name, target in targets.items()
        },
        "replicas": [
            {
                "name": each.name,
                "server": each.group.server,
                "accelerator": each.group.accelerator,
                "user_rows": each.group.user_rows,
                "state": each.state,
                "url": each.url,
                "why": each.why,
            }
            for each in now.replicas
        ],
        "unplaced": unplaced_json(now.unplaced),
        "cycle": cycle,
        "decisions": list(now.decisions),
    }


CONTROLLER = Application(
    title="Hearth cluster controller",
    description="Counts what comes, asks the optimizer, and starts and stops replicas.",
    failures=lambda rule: dict.fromkeys([*[404] * rule.has_parameters, 500], Error),
)


def _refusal(status: int, message: str, code: str) -> Response:
    response = jsonify(error_body(status, message, code))
    response.status_code = status
    return response


def _http_error(error: HTTPException) -> Response:
    name = error.name.lower()
    response = _refusal(error.code or 500, error.description or name, name.replace(" ", "_"))
    if isinstance(error, MethodNotAllowed):
        response.allow.update(error.valid_methods or ())
    return response
