# ruff: noqa: N999  (the name gunicorn looks for)
"""gunicorn --config proxy/gunicorn.conf.py: the proxy as a service."""

import sys

from proxy.errors import StartupError
from proxy.settings import Settings
from proxy.worker import gunicorn_options

try:
    globals().update(gunicorn_options(Settings.load()))
except StartupError as error:
    sys.exit(str(error))

wsgi_app = "proxy.proxy:create_proxy()"
