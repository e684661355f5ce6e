"""`python -m weights`: the weights service on WEIGHTS_HOST and WEIGHTS_PORT; with `drive`, a search
in another engine.
"""

import sys

import click

from common.launcher import serve, service_options
from common.processes import needing, printing
from weights.errors import StartupError

with needing("weights"):
    from weights.app import create_app
    from weights.drivers import command
    from weights.settings import load_settings


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Serve the weights search alone, or drive it in another engine."""
    if context.invoked_subcommand is not None:
        return
    try:
        settings = load_settings()
        serve(service_options(settings, "WEIGHTS"), lambda: create_app(settings))
    except StartupError as error:
        sys.exit(str(error))


main.add_command(command.main, "drive")


if __name__ == "__main__":
    with printing():
        main()
