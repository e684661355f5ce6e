"""Composition root of the API: builds every part once and connects them in one Flask app."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from flask import Blueprint, Flask

from common.connections.disconnects import DisconnectWatcher
from common.openapi import add_description
from common.web_pages import PageRules, register_page_check
from inference_api.apis import embeddings, models, tokenize
from inference_api.apis.answering import Answering
from inference_api.apis.anthropic import route as messages
from inference_api.apis.choosing import ModelChoice
from inference_api.apis.native import route as generate
from inference_api.apis.openai import route as openai
from inference_api.apis.openapi import API
from inference_api.apis.responses import route as responses
from inference_api.bundle import routes as bundle
from inference_api.bundle.residents import bring_up as bring_up_bundle
from inference_api.bundle.router import MemberRouter
from inference_api.core.decode_backend import BringUp, DecodeBackend
from inference_api.core.generations import Generations
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.core.record import Observer
from inference_api.core.status import Hooks
from inference_api.model_loading import bring_up as bring_up_models
from inference_api.pipeline import routes as pipeline
from inference_api.pipeline.model import bring_up as bring_up_split
from inference_api.settings import ModelSettings, Settings, load_settings
from inference_api.watch import dashboard_route as dashboard
from inference_api.watch import health_route as health
from inference_api.watch import speed_route as speed
from inference_api.watch.bundle_metrics import BundleCollector
from inference_api.watch.cluster_state import ClusterState
from inference_api.watch.live_state import LiveState
from inference_api.watch.log_lines import LogLines
from inference_api.watch.metrics import ServerMetrics, ServerState
from inference_api.watch.metrics import create_blueprint as create_metrics
from inference_api.watch.recent_requests import RecentRequests
from inference_api.watch.telemetry import Tracing
from inference_api.web.auth import needs_token, register_token_check
from inference_api.web.caller import register_requests
from inference_api.web.errors import register_error_handlers
from inference_api.web.left_aside import ReadingRules
from inference_api.web.whole_body import WholeBodyRequest
from optimizer.app import create_service
from optimizer.metrics import ReplicaGauges
from optimizer.routes import create_blueprint as create_optimizer_blueprint
from optimizer.settings import Settings as OptimizerSettings
from optimizer.settings import load_settings as load_optimizer_settings
from weights.app import create_service as create_weights_service
from weights.routes import create_blueprint as create_weights_blueprint
from weights.settings import Settings as WeightsSettings
from weights.settings import load_settings as load_weights_settings

EXTENSION = "hearth"  # key of the Server in app.extensions
# Blueprints that pages of CORS_ORIGINS may call.
INFERENCE = frozenset(
    {"embeddings", "generate", "messages", "models", "openai", "responses", "tokenize"}
)


@dataclass(frozen=True, slots=True)
class Server:
    """The threads behind an app, which gunicorn's hooks start, drain and stop."""

    backend: DecodeBackend
    watcher: DisconnectWatcher
    tracing: Tracing | None = None

    def start(self, hooks: Hooks | None = None) -> None:
        """Start the threads, in the process that serves: threads do not survive a fork."""
        self.backend.hooks = hooks or self.backend.hooks
        if self.tracing is not None:
            self.tracing.start()
        self.watcher.start()
        self.backend.start()

    def stop(self) -> None:
        self.backend.stop()
        self.watcher.stop()
        if self.tracing is not None:
            self.tracing.stop()


def create_server(
    settings: Settings | None = None,
    optimizer_settings: OptimizerSettings | None = None,
    weights_settings: WeightsSettings | None = None,
) -> Flask:
    """Returns the application. No thread runs until `server_of(app).start()`; torch is not
    imported. Raises StartupError of inference_api, optimizer or weights for invalid settings."""
    settings = settings or load_settings()
    optimizer_settings = optimizer_settings or load_optimizer_settings()
    weights_settings = weights_settings or load_weights_settings()
    optimizer = create_service(optimizer_settings)
    weights = create_weights_service(weights_settings)
    by_name = {each.name: each for each in settings.served_models}
    metrics = ServerMetrics(
        list(by_name),
        lambda name: _state(by_name[name], backend),
        settings.vllm_metrics,
        with_members=settings.bundle is not None,
    )
    backend = DecodeBackend(
        *(settings, _input_queue(settings), OutputQueues(), bring_up_of(settings)),
        on_stepped=metrics.stepped,
    )
    watcher = DisconnectWatcher()
    tracing = Tracing(settings) if settings.otel_exporter_otlp_endpoint else None
    if settings.bundle is not None:
        metrics.registry.register(BundleCollector(backend))
    metrics.registry.register(ReplicaGauges(lambda: optimizer.state, optimizer_settings.namespace))
    recent = RecentRequests()
    observers: list[Observer] = [metrics, recent, LogLines(names_model=len(by_name) > 1)]
    if tracing is not None:
        observers.append(tracing)
    generations = Generations(backend, watcher, observers, metrics.token_gap)

    app = _bare_app(settings, metrics)
    app.extensions[EXTENSION] = Server(backend, watcher, tracing)
    for blueprint in (*_inference_routes(generations), *_operator_routes(backend)):
        app.register_blueprint(blueprint)
    app.register_blueprint(create_metrics(metrics.registry))
    optimizer_mode = "stateful" if optimizer_settings.stateful else "stateless"
    app.register_blueprint(_dashboard(backend, metrics, recent, optimizer_mode))
    app.register_blueprint(create_optimizer_blueprint(optimizer, optimizer_settings))
    app.register_blueprint(create_weights_blueprint(weights, weights_settings.max_body_bytes))
    add_description(app, API, lambda rule: needs_token(rule, settings))
    return app


def _dashboard(
    backend: DecodeBackend, metrics: ServerMetrics, recent: RecentRequests, optimizer_mode: str
) -> Blueprint:
    live_state = LiveState(backend, metrics.registry)
    url = backend.settings.cluster_url
    cluster = ClusterState(url) if url else None
    page = dashboard.Page.read(optimizer_mode, has_cluster=cluster is not None)
    return dashboard.create_blueprint(backend, live_state.dump, recent, cluster, page)


def _inference_routes(generations: Generations) -> Iterator[Blueprint]:
    backend = generations.backend
    answering = Answering(generations, ModelChoice(_router(backend.settings), backend))
    yield generate.create_blueprint(answering)
    yield openai.create_blueprint(answering)
    yield models.create_blueprint(backend)
    yield responses.create_blueprint(answering)
    yield messages.create_blueprint(answering)
    yield embeddings.create_blueprint(answering)
    yield tokenize.create_blueprint(answering.choice)


def _operator_routes(backend: DecodeBackend) -> Iterator[Blueprint]:
    yield bundle.create_blueprint(backend)
    if backend.settings.split is not None and not backend.settings.mock_model:
        yield pipeline.create_blueprint(backend)
    yield health.create_blueprint(backend, _end_arbiter)
    yield speed.create_blueprint(backend)


def _bare_app(settings: Settings, metrics: ServerMetrics) -> Flask:
    """Returns an application without routes, with its bounds, checks and error handlers."""
    app = Flask("inference_api", static_folder=None)
    app.request_class = WholeBodyRequest
    app.url_map.strict_slashes = False  # base URLs often end in one
    app.config["MAX_CONTENT_LENGTH"] = settings.max_content_length_bytes
    rules = ReadingRules(settings.unknown_fields == "refuse", settings.images == "refuse")
    register_requests(app, rules, metrics.field_ignored)
    register_page_check(
        app,
        PageRules(
            hosts=frozenset({*settings.allowed_hosts, settings.service_host.lower()}),
            needs_json=True,
            origins=frozenset(settings.cors_origins),
            open_to_origins=INFERENCE,
        ),
    )
    register_token_check(app, settings)
    register_error_handlers(app, on_error=metrics.request_failed)
    return app


def server_of(app: object) -> Server:
    """Returns the Server behind an app made by `create_server`."""
    assert isinstance(app, Flask)
    server = app.extensions[EXTENSION]
    assert isinstance(server, Server)
    return server


def _input_queue(settings: Settings) -> InputQueue:
    rows = {model.name: model.user_rows for model in settings.served_models}
    if settings.bundle is None:
        return InputQueue(settings.max_input_qsize, rows)
    return InputQueue(settings.queue_capacity, rows, shared_rows=settings.all_user_rows)


def bring_up_of(settings: Settings) -> BringUp:
    if settings.bundle is not None:
        return bring_up_bundle
    return bring_up_models if settings.split is None else bring_up_split


def _router(settings: Settings) -> MemberRouter | None:
    """Returns the bundle's router, which learns the members' texts, if any. Raises StartupError."""
    bundle = settings.bundle
    if bundle is None or bundle.router is None:
        return None
    fallback = bundle.router.fallback or bundle.default_member.name
    texts = {each.name: (each.description, *each.examples) for each in bundle.members}
    return MemberRouter.of(texts, bundle.router.threshold, fallback)


def _state(model: ModelSettings, backend: DecodeBackend) -> ServerState:
    name, snapshot = model.name, backend.snapshot.models[model.name]
    queued = backend.input_queue.num_waiting(name) + snapshot.paused
    sessions = backend.output_queues.num_sessions(name)
    return ServerState(model.user_rows, queued, sessions, snapshot)


def _end_arbiter() -> None:
    """Ask gunicorn's arbiter, the parent of this worker, to shut down gracefully."""
    os.kill(os.getppid(), signal.SIGTERM)
