#!/usr/bin/env python3
"""The command `hearth`: what is run every day, under one name and from any directory.

Each command is `python -m MODULE` with everything that follows its name.
"""

import runpy
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import click

from common import __version__


@dataclass(frozen=True, slots=True)
class Extra:
    """Of pyproject.toml, and a module by which one sees whether it is installed."""

    name: str
    module: str


SERVE = Extra("serve", "torch")
BENCH, OPTIMIZER, WEIGHTS = (Extra(name, "scipy") for name in ("bench", "optimizer", "weights"))


@dataclass(frozen=True, slots=True)
class Command:
    module: str
    summary: str
    extra: Extra | None = None


COMMANDS = {
    "serve": Command("scripts.serve", "Serve the API and the proxy on this machine.", SERVE),
    "init": Command("scripts.init", "Write .env with the secrets for docker compose."),
    "proxy": Command("proxy", "Serve the proxy alone."),
    "optimizer": Command(
        "optimizer", "Serve the optimizer alone; -F keeps a system between requests.", OPTIMIZER
    ),
    "plan": Command(
        "optimizer.plan", "Estimate how many accelerators a load needs, and their cost.", OPTIMIZER
    ),
    "weights": Command("weights", "Serve the weights search alone.", WEIGHTS),
    "cluster": Command("cluster", "Start and stop replicas as the load requires."),
    "bundle": Command("scripts.bundle", "Check a bundle of models before you serve it.", SERVE),
    "bench": Command("benchmarking", "Measure any server with OpenAI's API.", BENCH),
    "agent": Command("scripts.agent", "Print what to type so that an agent uses the server."),
    "token": Command("scripts.jwt_util", "Make and read tokens for the proxy."),
}


@click.group()
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Serve language models, measure servers and plan their hardware."""


def run(name: str, arguments: tuple[str, ...]) -> None:
    extra = COMMANDS[name].extra
    if extra is not None and find_spec(extra.module) is None:
        raise click.ClickException(
            f"{extra.module} is not installed, and `hearth {name}` needs it: "
            f"pip install 'hearth[{extra.name}]', or the path of a wheel followed by [{extra.name}]"
        )
    sys.argv = [f"hearth {name}", *arguments]
    runpy.run_module(COMMANDS[name].module, run_name="__main__")


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
