"""Composition root of the API: builds every part once and joins them into one Flask app."""

import os
import signal
from dataclasses import asdict, dataclass

from flask import Flask

from inference_api.decode_backend import DecodeBackend, Hooks
from inference_api.disconnects import DisconnectWatcher
from inference_api.input_queue import InputQueue
from inference_api.metrics import ServerMetrics, ServerState
from inference_api.output_queues import OutputQueues
from inference_api.routes import generate, health, openai
from inference_api.routes import metrics as metrics_routes
from inference_api.routes.auth import register_token_check
from inference_api.routes.caller import register_request_ids
from inference_api.routes.errors import register_error_handlers
from inference_api.settings import Settings, load_settings
from inference_api.streaming import Generations
from optimizer.app import create_service
from optimizer.metrics import DesiredReplicas
from optimizer.routes import create_blueprint as create_optimizer_blueprint
from optimizer.settings import Settings as OptimizerSettings
from optimizer.settings import load_settings as load_optimizer_settings

EXTENSION = "hearth"  # key of the Server in app.extensions


@dataclass(frozen=True, slots=True)
class Server:
    """The threads behind an app. gunicorn's hooks start, drain and stop them."""

    settings: Settings
    backend: DecodeBackend
    input_queue: InputQueue
    output_queues: OutputQueues
    watcher: DisconnectWatcher

    def start(self, hooks: Hooks | None = None) -> None:
        """Start the threads, in the process that serves: threads do not survive a fork."""
        self.backend.hooks = hooks or self.backend.hooks
        self.watcher.start()
        self.backend.start()

    def stop(self) -> None:
        self.backend.stop()
        self.watcher.stop()


def create_server(
    settings: Settings | None = None, optimizer_settings: OptimizerSettings | None = None
) -> Flask:
    """The application. Nothing runs until `server_of(app).start()`; no torch is imported.

    Raises the StartupError of inference_api or optimizer when a setting is invalid.
    """
    settings = settings or load_settings()
    optimizer_settings = optimizer_settings or load_optimizer_settings()
    optimizer = create_service(optimizer_settings)
    input_queue = InputQueue(settings.max_input_qsize)
    output_queues = OutputQueues()
    backend = DecodeBackend(settings, input_queue, output_queues)
    watcher = DisconnectWatcher()
    metrics = ServerMetrics(
        settings.served_name, lambda: _state(backend, input_queue, output_queues)
    )
    metrics.registry.register(DesiredReplicas(lambda: optimizer.state))
    generations = Generations(backend, input_queue, output_queues, watcher, metrics)

    app = Flask("inference_api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_content_length_bytes
    app.extensions[EXTENSION] = Server(settings, backend, input_queue, output_queues, watcher)
    register_request_ids(app)
    register_token_check(app, settings)
    register_error_handlers(app, on_error=metrics.request_failed)
    app.register_blueprint(generate.create_blueprint(generations, settings))
    app.register_blueprint(openai.create_blueprint(generations, backend, settings))
    app.register_blueprint(
        health.create_blueprint(backend, input_queue, output_queues, settings, _end_arbiter)
    )
    app.register_blueprint(metrics_routes.create_blueprint(metrics.registry))
    app.register_blueprint(create_optimizer_blueprint(optimizer, optimizer_settings.max_body_bytes))
    return app


def server_of(app: object) -> Server:
    """The Server behind an app made by `create_server`, as gunicorn hands it around."""
    assert isinstance(app, Flask)
    server = app.extensions[EXTENSION]
    assert isinstance(server, Server)
    return server


def _state(
    backend: DecodeBackend, input_queue: InputQueue, output_queues: OutputQueues
) -> ServerState:
    snapshot = backend.snapshot
    return ServerState(
        busy_rows=snapshot.busy_rows,
        user_rows=backend.max_users,
        queued=len(input_queue),
        sessions=len(output_queues),
        **asdict(snapshot.totals),
    )


def _end_arbiter() -> None:
    """Ask gunicorn's arbiter, this worker's parent, to shut everything down gracefully."""
    os.kill(os.getppid(), signal.SIGTERM)
