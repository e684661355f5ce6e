# ruff: noqa: N999 - the name gunicorn looks for
"""gunicorn -c optimizer/gunicorn.conf.py "optimizer.app:create_app()": the optimizer alone."""

import sys

from common.launcher import service_options
from optimizer.errors import StartupError
from optimizer.settings import load_settings

try:
    globals().update(service_options(load_settings(), "INFERNO"))
except StartupError as error:
    sys.exit(str(error))
