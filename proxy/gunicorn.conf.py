# ruff: noqa: N999  (the name gunicorn looks for)
"""gunicorn --config proxy/gunicorn.conf.py: the proxy as a service."""

import sys
from pathlib import Path

# So that it works from any directory, as gunicorn only adds the current one.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy.errors import StartupError
from proxy.server import gunicorn_options
from proxy.settings import Settings

try:
    globals().update(gunicorn_options(Settings.load()))
except StartupError as error:
    sys.exit(str(error))

wsgi_app = "proxy.proxy:create_proxy()"
