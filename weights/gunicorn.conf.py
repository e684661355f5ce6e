# ruff: noqa: N999 - the name gunicorn looks for
"""gunicorn -c weights/gunicorn.conf.py "weights.app:create_app()": the weights service alone."""

import sys

from common.launcher import threaded
from weights.errors import StartupError
from weights.settings import load_settings

try:
    _settings = load_settings()
except StartupError as error:
    sys.exit(str(error))
globals().update(
    threaded(
        _settings.host,
        _settings.port,
        ("WEIGHTS_HOST", "WEIGHTS_PORT"),
        _settings.threads,
        _settings.max_body_bytes,
    )
)
