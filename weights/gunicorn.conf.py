# ruff: noqa: N999 - the name gunicorn looks for
"""Gunicorn for the weights service alone. One worker: what is being measured is the process's."""

from weights.settings import load_settings

_settings = load_settings()

bind = f"{_settings.host}:{_settings.port}"
workers = 1
worker_class = "gthread"
threads = _settings.threads
timeout = 120
graceful_timeout = 30
preload_app = False
control_socket_disable = True  # one path per user: two servers would fight for it
