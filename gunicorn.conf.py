"""gunicorn for the API: one worker, because rows, queues and metrics live in one process.

A thread for every row and every queued request, and some to spare, so that /health always has
one. Nothing is preloaded: threads and CUDA do not survive a fork, so the worker starts its own.
"""

import ctypes
import gc
import math
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

gc.disable()  # until `on_starting`: to look for garbage among modules takes a tenth of a start

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.gthread import ThreadWorker

from common import startup
from common.connections.sockets import host_and_port
from common.connections.worker import ConnectionLimits, allowed_connections, polling_worker
from common.logs import logging_config
from inference_api.core.status import Hooks, Phase
from inference_api.errors import StartupError
from inference_api.inference_api_server import server_of
from inference_api.preflight import check_start
from inference_api.settings import load_settings
from optimizer.settings import load_settings as load_optimizer_settings
from weights.settings import load_settings as load_weights_settings

faults: list[str] = []
for load in (load_settings, load_optimizer_settings, load_weights_settings):
    try:
        load()
    except startup.StartupError as error:
        faults += error.faults
if faults:
    sys.exit(str(StartupError(list(dict.fromkeys(faults)))))  # they share some variables
settings = load_settings()

MOCK_APP = "inference_api._mock_inference_api_server:create_test_server()"
MODEL_APP = "inference_api.inference_api_server:create_server()"
GRACE_BEYOND_DRAIN_S = 15

wsgi_app = MOCK_APP if settings.mock_model else MODEL_APP
bind = host_and_port(settings.service_host, settings.service_port)
workers = 1
worker_class = polling_worker(
    ConnectionLimits(
        settings.max_content_length_bytes,
        settings.head_timeout_s,
        settings.body_timeout_s,
        settings.min_body_bytes_per_s,
        settings.max_waiting_per_address,
    )
)
threads = settings.threads
worker_connections = allowed_connections(settings.max_connections)
preload_app = False
max_requests = 0  # recycling a worker would load the model again
timeout = 120  # of the worker's heartbeat: no limit on a stream
graceful_timeout = math.ceil(settings.drain_timeout_s) + GRACE_BEYOND_DRAIN_S
keepalive = 75  # longer than the proxy keeps an idle connection
control_socket_disable = True  # one path for all gunicorns of a user: the proxy has one too
logconfig_dict = logging_config(settings.log_level, settings.log_format)


def on_starting(arbiter: Arbiter) -> None:
    """Find every reason not to start before there is a worker."""
    assert isinstance(arbiter.app, WSGIApplication)
    try:
        check_start(settings, with_model=arbiter.app.app_uri == MODEL_APP)
    except StartupError as error:
        sys.exit(str(error))
    gc.freeze()
    gc.enable()


def post_worker_init(worker: ThreadWorker) -> None:
    server = server_of(worker.wsgi)

    def drain_then_stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, once_is_enough)
        # Go on accepting meanwhile, to refuse with 503: else the kernel would take connections
        # that nobody ever answers.
        server.backend.drain(on_drained=lambda: worker.handle_exit(signum, None))

    signal.signal(signal.SIGTERM, drain_then_stop)
    # A worker that boots and cannot load its model would be restarted for ever: end the arbiter.
    # One whose decode thread dies later is worth replacing: it ends, the arbiter starts another.
    server.start(
        Hooks(
            on_loaded=keep_what_is_loaded,
            on_load_failed=lambda: os._exit(Arbiter.WORKER_BOOT_ERROR),
            on_failed=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
    )
    let_steps_finish()


def once_is_enough(signum: int, frame: FrameType | None) -> None:
    """Handles SIGTERM while this thread drains or stops, and holds locks that both would take."""


def keep_what_is_loaded() -> None:
    """Leaves modules and models out of garbage collections to come, and gives back what was freed.

    A full one would look at all of them, and hold every thread up for some 200 ms in the middle of
    serving.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # only glibc has it: free memory goes back to the system
        ctypes.CDLL(None).malloc_trim(0)


def let_steps_finish() -> None:
    """Threads that this one starts from now on take no processor from a running one by waking up.

    A step wakes a request thread for every token. As batch threads they write them beside the next
    step, and not in the midst of it; a processor that is idle takes them at once, as before.
    """
    with suppress(OSError):  # a sandbox may forbid it, or not know it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def worker_exit(arbiter: Arbiter, worker: ThreadWorker) -> None:
    signal.signal(signal.SIGTERM, once_is_enough)
    backend = server_of(worker.wsgi).backend
    server_of(worker.wsgi).stop()
    # Ranks that have lost one start again together: by their launcher, once gunicorn has ended too.
    if settings.split is not None and backend.phase is Phase.FAILED:
        os.kill(os.getppid(), signal.SIGTERM)
