"""`python -m optimizer [-F]`: the optimizer on INFERNO_HOST and INFERNO_PORT.

With -F it keeps a system between requests; without, every request brings its own, unless
OPTIMIZER_STATEFUL says otherwise.
"""

import sys

import click

from common.launcher import serve, service_options
from common.processes import needing
from optimizer.errors import StartupError
from optimizer.settings import load_settings

with needing("optimizer"):
    from optimizer.app import create_app


@click.command()
@click.option("-F", "is_stateful", is_flag=True, help="Keep a system between requests.")
def main(is_stateful: bool) -> None:
    """Serve the optimizer alone."""
    try:
        settings = load_settings()
        if is_stateful:
            settings = settings.model_copy(update={"stateful": True})
        serve(service_options(settings, "INFERNO"), lambda: create_app(settings))
    except StartupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
