#!/usr/bin/env python3
"""The command `hearth`: the everyday commands under one name, for use in any directory."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

from common import __version__
from common.processes import install_line, printing

PROOFS = {  # for each extra of pyproject.toml, modules that show that it is installed
    "bench": ("matplotlib",),
    "optimizer": ("gguf", "scipy"),
    "serve": ("gguf", "tokenizers"),
    "serve,train": ("gguf", "transformers"),
    "weights": ("gguf", "scipy"),
}


class Command(NamedTuple):
    module: str  # the module with its `main`
    summary: str
    extra: str | None = None


COMMANDS = {
    "serve": Command("scripts.serve", "Serve the API and the proxy on this machine.", "serve"),
    "init": Command("scripts.init", "Write .env with the secrets for docker compose."),
    "proxy": Command("proxy.proxy", "Serve the proxy alone."),
    "optimizer": Command(
        "optimizer.__main__",
        "Serve the optimizer alone; -F keeps a system between requests.",
        "optimizer",
    ),
    "plan": Command(
        "optimizer.plan",
        "Estimate how many accelerators a load needs, and their cost.",
        "optimizer",
    ),
    "weights": Command("weights.__main__", "Serve the weights search alone.", "weights"),
    "cluster": Command("cluster.__main__", "Start and stop replicas as the load requires."),
    "bundle": Command("scripts.bundle", "Check a bundle of models before you serve it.", "serve"),
    "quantize": Command(
        "scripts.quantize.cli", "Write a GGUF model in 5 bits a weight or fewer.", "serve"
    ),
    "medusa": Command(
        "scripts.medusa.cli", "Train Medusa heads on a model's own answers.", "serve,train"
    ),
    "bench": Command("benchmarking.commands.cli", "Measure any server with OpenAI's API.", "bench"),
    "agent": Command("scripts.agent", "Print what to type so that an agent uses the server."),
    "token": Command("scripts.jwt_util", "Make and read tokens for the proxy."),
}


class Commands(click.Group):
    """Imports the module of a command only when the command is run, not to list it."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with printing():
            return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.summary) for name, each in COMMANDS.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        extra = COMMANDS[name].extra
        lacking = [each for each in PROOFS[extra] if find_spec(each) is None] if extra else []
        if extra and lacking:
            raise click.ClickException(
                f"{lacking[0]} is not installed, and `hearth {name}` needs it: "
                f"{install_line(extra)}"
            )
        command = import_module(COMMANDS[name].module).main
        return command if isinstance(command, click.Command) else _script(name, command)


def _script(name: str, main: Callable[[], int]) -> click.Command:
    """Returns a script as a command. It parses its own options, because it also runs alone."""

    def run(arguments: tuple[str, ...]) -> None:
        sys.argv = [f"hearth {name}", *arguments]
        sys.exit(main())

    return click.Command(
        name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
    )


@click.group(cls=Commands)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Serve language models, measure servers and plan their hardware."""


if __name__ == "__main__":
    main()
