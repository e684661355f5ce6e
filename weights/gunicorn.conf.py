# ruff: noqa: N999 - the name gunicorn looks for
"""gunicorn -c weights/gunicorn.conf.py "weights.app:create_app()": the weights service alone."""

import sys

from common.launcher import service_options
from weights.errors import StartupError
from weights.settings import load_settings

try:
    globals().update(service_options(load_settings(), "WEIGHTS"))
except StartupError as error:
    sys.exit(str(error))
