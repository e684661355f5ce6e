"""The composition root: builds the application from its settings.

Also a script, `python proxy/proxy.py`, with the options of `python -m proxy`.
"""

import os
import sys

if __name__ == "__main__":
    # For a script, its own directory comes first in the path, and this file would hide the package.
    os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[1:]])

import logging
import logging.config
import warnings

import click
from jwt import PyJWK
from jwt.warnings import InsecureKeyLengthWarning

from common.launcher import Launcher
from proxy.access.auth import Authenticator, parse_revoked
from proxy.access.keys import JwksUrl, KeySource, parse_jwks, select_keys, shared_secrets
from proxy.access.limits import TeamLimits
from proxy.access.policy import Policy, parse_policy
from proxy.app import ProxyApp
from proxy.errors import StartupError
from proxy.files import WatchedFile, opened, validated
from proxy.settings import MIN_SECRET_BYTES, Settings
from proxy.upstreams.balancer import Balancer
from proxy.upstreams.endpoint_slices import ApiServer, EndpointSlices, Services
from proxy.upstreams.routes import NO_ROUTES, parse_routes
from proxy.upstreams.specs import (
    Discovery,
    ReplicasFile,
    Specs,
    UpstreamSpec,
    parse_keys,
    parse_upstreams,
)
from proxy.visits import ProxyParts
from proxy.worker import gunicorn_options, logging_config

log = logging.getLogger(__name__)


def create_proxy(settings: Settings | None = None) -> ProxyApp:
    """Returns the application, not yet started. Settings default to the environment. Raises
    StartupError with every file that cannot be read."""
    settings = settings or Settings.load()
    faults: list[str] = []
    upstreams = opened(settings.upstreams_file, parse_upstreams, faults)
    keys = opened(settings.upstream_keys, parse_keys, faults)
    routes = opened(settings.routes_file, parse_routes, faults)
    policy = opened(settings.policy_file, parse_policy, faults)
    revoked = opened(settings.revoked_tokens_file, parse_revoked, faults)
    jwks = opened(settings.jwks_file, parse_jwks, faults)
    discovery = _discovery(settings, upstreams, faults)
    if faults:
        raise StartupError(faults)
    log.info("settings: %r", settings)  # secrets are masked
    _warn_of_weak_secrets(settings)
    balancer = Balancer(
        discovery.current,
        settings.connect_timeout,
        max_in_flight=settings.upstream_connections,
        stall_timeout_s=settings.stream_stall_timeout,
        keys=(lambda: keys.value) if keys else dict,
        routes=(lambda: routes.value) if routes else (lambda: NO_ROUTES),
    )
    authenticator = Authenticator(
        settings,
        _key_sources(settings, jwks),
        revoked_ids=(lambda: revoked.value) if revoked else tuple,
    )
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    limits = TeamLimits(redis_url)
    if policy:
        log.info("limits are counted in %s", "Redis" if redis_url else "this process's memory")
    no_limits = Policy()
    parts = ProxyParts(
        authenticator=authenticator,
        balancer=balancer,
        limits=limits,
        policy=(lambda: policy.value) if policy else (lambda: no_limits),
        discovery=discovery,
        refreshers=[file.refresh for file in (keys, routes, policy, revoked, jwks) if file],
    )
    return ProxyApp(settings, parts)


def _discovery(settings: Settings, file: WatchedFile[Specs] | None, faults: list[str]) -> Discovery:
    try:
        if settings.upstreams_service:
            services = Services.parse(settings.upstreams_service)
            api = ApiServer(settings.kubernetes_api, settings.kubernetes_account)
            return EndpointSlices(api, services)
        return ReplicasFile(file) if file else Discovery(_single(settings.upstream))
    except OSError as error:
        faults.append(
            f"KUBERNETES_ACCOUNT: {error}; run in a pod with a service account, or have "
            "`kubectl proxy` running and KUBERNETES_API=http://127.0.0.1:8001"
        )
    except ValueError as error:
        faults.append(str(error))
    return Discovery()


def _single(url: str) -> UpstreamSpec:
    try:
        return validated(UpstreamSpec, {"url": url})
    except ValueError as error:
        raise ValueError(f"UPSTREAM: {error}") from None


def _key_sources(
    settings: Settings, jwks: WatchedFile[tuple[PyJWK, ...]] | None
) -> list[KeySource]:
    sources = [shared_secrets(settings.secrets)]
    if jwks:
        sources.append(lambda algorithm, key_id: select_keys(jwks.value, algorithm, key_id))
    if settings.jwks_url:
        sources.append(JwksUrl(settings.jwks_url).candidates)
    return sources


def _warn_of_weak_secrets(settings: Settings) -> None:
    for name in settings.weak_secrets:
        log.warning("%s is under %d bytes: fit for trying things out only", name, MIN_SECRET_BYTES)
    # Warn once here; the library would warn for every request.
    warnings.filterwarnings("ignore", category=InsecureKeyLengthWarning)


@click.command()
@click.option("--hostname", help="Address to listen on; overrides PROXY_HOST.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port; overrides PROXY_PORT.")
def main(hostname: str | None, port: int | None) -> None:
    """Check tokens and relay requests to the inference servers, streams untouched."""
    options = {"proxy_host": hostname, "proxy_port": port}
    overrides = {name: value for name, value in options.items() if value is not None}
    try:
        settings = Settings.load(**overrides)
        logging.config.dictConfig(logging_config(settings))
        app = create_proxy(settings)
    except StartupError as error:
        sys.exit(str(error))
    Launcher(gunicorn_options(settings), lambda: app).run()
