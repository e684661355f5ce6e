"""The composition root: builds the application from its settings.

Also a script, `python proxy/proxy.py`, with the options of `python -m proxy`.
"""

import sys

if __package__ in (None, ""):
    # As a script: this directory stands in front of the path, where its modules would be
    # taken for others of the same name (`limits`, and this very file for the package).
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import logging
import warnings

import click
from jwt.warnings import InsecureKeyLengthWarning

from proxy.app import ProxyApp
from proxy.auth import Authenticator, claim_rules
from proxy.errors import StartupError
from proxy.keys import KeySource, SharedSecrets
from proxy.server import ProxyServer
from proxy.settings import MIN_SECRET_BYTES, Settings
from proxy.upstreams import Balancer, UpstreamSpec

log = logging.getLogger(__name__)


def create_proxy(settings: Settings | None = None) -> ProxyApp:
    """The application, not yet started; from the environment when no settings are given."""
    settings = settings or Settings.load()
    _warn_of_weak_secrets(settings)
    key_sources: list[KeySource] = [SharedSecrets(settings.secrets)]
    authenticator = Authenticator(
        settings.jwt_algorithms, key_sources, claim_rules(settings), lambda: ()
    )
    balancer = Balancer([UpstreamSpec(settings.upstream)], settings.connect_timeout)
    return ProxyApp(settings, authenticator, balancer)


def _warn_of_weak_secrets(settings: Settings) -> None:
    for name in settings.weak_secrets:
        log.warning("%s is under %d bytes: fit for trying things out only", name, MIN_SECRET_BYTES)
    # Said once, here; the library would say it again for every request.
    warnings.filterwarnings("ignore", category=InsecureKeyLengthWarning)


@click.command()
@click.option("--hostname", help="Address to listen on; overrides PROXY_HOST.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port; overrides PROXY_PORT.")
def main(hostname: str | None, port: int | None) -> None:
    """Check tokens and relay requests to the inference servers, streams untouched."""
    given = {"proxy_host": hostname, "proxy_port": port}
    overrides = {name: value for name, value in given.items() if value is not None}
    try:
        settings = Settings.load(**overrides)
        app = create_proxy(settings)
    except StartupError as error:
        sys.exit(str(error))
    ProxyServer(settings, app).run()


if __name__ == "__main__":
    main()
