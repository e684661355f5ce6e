#!/usr/bin/env python3
"""The command `hearth`: what is run every day, under one name and from any directory.

Each command is `python -m MODULE` with everything that follows its name.
"""

import runpy
import sys
from dataclasses import dataclass
from functools import partial

import click

from inference_api import __version__


@dataclass(frozen=True, slots=True)
class Command:
    module: str
    summary: str
    extra: str | None = None  # of pyproject.toml, that brings what it needs


COMMANDS = {
    "serve": Command("scripts.serve", "Serve the API and the proxy on this machine.", "serve"),
    "init": Command("scripts.init", "Write the secrets of docker compose to .env."),
    "proxy": Command("proxy", "Serve the proxy alone."),
    "optimizer": Command(
        "optimizer", "Serve the optimizer alone; with -F it keeps a system.", "optimizer"
    ),
    "plan": Command(
        "optimizer.plan", "Say how many accelerators a load needs, and at what cost.", "optimizer"
    ),
    "weights": Command("weights", "Serve the weights search alone.", "weights"),
    "cluster": Command("cluster", "Grow and shrink a cluster by what comes to it.", "cluster"),
    "bundle": Command("scripts.bundle", "Check a bundle of experts before it is served.", "serve"),
    "bench": Command("benchmarking", "Measure a server.", "bench"),
    "token": Command("scripts.jwt_util", "Make and read tokens, by the secret `serve` keeps."),
}


@click.group()
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Serve language models, measure the servers and plan their hardware."""


def run(name: str, arguments: tuple[str, ...]) -> None:
    command = COMMANDS[name]
    sys.argv = [f"hearth {name}", *arguments]
    try:
        runpy.run_module(command.module, run_name="__main__")
    except ModuleNotFoundError as error:
        if command.extra is None:
            raise
        raise click.ClickException(
            f"there is no {error.name} here; install Hearth with what `hearth {name}` needs: "
            f"pip install 'hearth[{command.extra}]', or ./hearth-….whl[{command.extra}]"
        ) from error


for name, command in COMMANDS.items():
    main.add_command(
        click.Command(
            name,
            callback=partial(run, name),
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            context_settings={"ignore_unknown_options": True},
            add_help_option=False,  # its own says more than we could
            help=command.summary,
        )
    )


if __name__ == "__main__":
    main()
