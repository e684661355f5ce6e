# ruff: noqa: N999 - the name gunicorn looks for
"""gunicorn -c optimizer/gunicorn.conf.py "optimizer.app:create_app()": the optimizer alone."""

import sys

from common.launcher import threaded
from optimizer.errors import StartupError
from optimizer.settings import load_settings

try:
    _settings = load_settings()
except StartupError as error:
    sys.exit(str(error))
globals().update(
    threaded(
        _settings.host,
        _settings.port,
        ("INFERNO_HOST", "INFERNO_PORT"),
        _settings.threads,
        _settings.max_body_bytes,
    )
)
