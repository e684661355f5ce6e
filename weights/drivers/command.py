"""`python -m weights drive`: find the best split of a model in an engine that runs elsewhere."""

import os
import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from common.errors import WireError
from weights.app import create_service
from weights.drivers import Driver
from weights.drivers.exo import ExoDriver
from weights.drivers.gguf_layers import MAX_LAYERS, read_num_layers
from weights.drivers.http import Http
from weights.drivers.llama_cpp import LlamaCppDriver
from weights.drivers.loop import Search, drive
from weights.drivers.pipeline import PipelineDriver
from weights.drivers.server import ServerDriver
from weights.errors import DriveError, EngineUnusable, StartupError
from weights.settings import load_settings

VARIABLES = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
URL = re.compile(r"https?://[^\s/]+.*")
HOST = re.compile(r"[A-Za-z0-9_.\-\[\]:]+:\d{1,5}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_TRIALS, MAX_STAGES, MAX_TOKENS, MAX_REPEATS = 1000, 64, 65_536, 100


@click.group()
def main() -> None:
    """Find the best split of a model in an engine that runs elsewhere.

    \b
    drive pipeline --url http://127.0.0.1:7000 --model llama
    drive exo --url http://10.0.0.1:52415 --model mlx-community/Qwen3-30B-A3B-4bit
    drive llama.cpp --model qwen3-8b.gguf --rpc 10.0.0.2:50052,10.0.0.3:50052
    drive vllm --model Qwen/Qwen3-8B --layers 36 --stages 3 --
        vllm serve Qwen/Qwen3-8B --pipeline-parallel-size 3

    Measurements are kept in the session, in the store of the weights service: another run continues
    where this one ended, and /weights/sessions shows them.
    """


def searches(driver_of: Callable[..., Driver]) -> Callable[..., None]:
    """Decorates a function that makes a driver from an engine's options: returns the command, with
    the common options, that searches. It exits with 0 if it finds a split, or 1 and the reason."""

    @click.option("--model", required=True)
    @click.option("--session", help="Default: ENGINE-MODEL.")
    @click.option("--trials", type=click.IntRange(1, MAX_TRIALS), default=20, help="At most.")
    @click.option("--min-layers", type=click.IntRange(1, MAX_LAYERS), default=1)
    @click.option("--timeout", "timeout_s", type=click.IntRange(1, 86_400), default=1800,
        help="Seconds per trial.")  # fmt: skip
    @wraps(driver_of)
    def command(session: str | None, trials: int, min_layers: int, **options: Any) -> None:
        engine = click.get_current_context().info_name
        session = session or f"{engine}-{options['model'].rstrip('/')}"[:256]
        try:
            service = create_service(load_settings())
        except StartupError as error:
            sys.exit(str(error))
        try:
            driver = driver_of(**options)
            search = Search(service, session, driver.ring, min_layers)
            drive(driver, search, trials, partial(print, flush=True))
        except (DriveError, WireError) as error:
            sys.exit(f"weights drive {engine}: {error}")
        finally:
            service.close()

    return command


_tokens = click.option(
    "--tokens", "generated_tokens", type=click.IntRange(1, MAX_TOKENS), default=128
)
_repeats = click.option("--repeats", type=click.IntRange(1, MAX_REPEATS), default=3)


def _is(pattern: re.Pattern[str], description: str) -> Callable[..., str]:
    def check(context: click.Context, option: click.Parameter, text: str) -> str:
        if not pattern.fullmatch(text):
            raise click.BadParameter(f"{text!r} is no {description}")
        return text

    return check


def _list(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _hosts(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    hosts = _list(context, option, text)
    if not hosts or not all(map(HOST.fullmatch, hosts)):
        raise click.BadParameter(f"{text!r} is no list such as 10.0.0.2:50052")
    return hosts


_url = _is(URL, "address such as http://10.0.0.1:8000")


@main.command()
@click.option("--url", callback=_url, required=True, help="The API's: http://host:7000.")
@click.option("--token", envvar="HEARTH_TOKEN", help="An operator's, else HEARTH_TOKEN.")
@searches
def pipeline(url: str, token: str | None, timeout_s: int, model: str) -> Driver:
    """A Hearth server with a split model, between its requests."""
    return PipelineDriver(Http(url, timeout_s, token), timeout_s)


@main.command()
@click.option("--url", callback=_url, required=True, help="Any node's: http://host:52415.")
@click.option("--nodes", callback=_list, default="", help="Ids, comma-separated; default: all.")
@click.option("--replace", "replaces", is_flag=True, help="Delete running instances.")
@_tokens
@_repeats
@searches
def exo(url: str, timeout_s: int, **plan: Any) -> Driver:
    """An exo cluster, through its API."""
    return ExoDriver(Http(url), load_timeout_s=timeout_s, **plan)


@main.command("llama.cpp")
@click.option("--rpc", callback=_hosts, required=True, help="host:port, comma-separated.")
@click.option("--local", callback=_list, default="", help="This machine's devices, as CUDA0.")
@click.option("--program", default="llama-bench", help="Path of llama-bench.")
@click.option("--prompt-tokens", type=click.IntRange(0, MAX_TOKENS), default=0,
    help="Per request; default 0: measure generation only.")  # fmt: skip
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@_tokens
@_repeats
@searches
def llama_cpp(model: str, **bench: Any) -> Driver:
    """llama.cpp's RPC servers, with llama-bench, whose OPTIONS follow --."""
    return LlamaCppDriver(model=Path(model), **bench)


def _add_server(name: str, description: str, **variable: Any) -> None:
    @main.command(name, help=f"{description}, whose COMMAND follows --.")
    @click.option("--stages", type=click.IntRange(2, MAX_STAGES), required=True)
    @click.option("--layers", type=click.IntRange(2, MAX_LAYERS),
        help="Number of layers; default: read from the --model folder or file.")  # fmt: skip
    @click.option("--url", callback=_url, default="http://127.0.0.1:8000/v1")
    @click.option("--users", type=click.IntRange(1, 512), default=8)
    @click.option("--variable", callback=_is(NAME, "name of a variable"), **variable)
    @click.argument("command", nargs=-1, type=click.UNPROCESSED)
    @_tokens
    @_repeats
    @searches
    def server(
        command: tuple[str, ...], layers: int | None, url: str, repeats: int, timeout_s: int,
        **plan: Any,
    ) -> Driver:  # fmt: skip
        if not command:
            raise EngineUnusable("no command; give the server's after --")
        return ServerDriver(
            command=command,
            num_layers=layers or read_num_layers(Path(plan["model"])),
            url=url.rstrip("/"),
            environment=dict(os.environ),  # noqa: TID251 - handed on to the server
            rounds=repeats,
            start_timeout_s=timeout_s,
            **plan,
        )


for name, variable in VARIABLES.items():
    _add_server(name, f"A server that reads {variable}", default=variable, hidden=True)
_add_server("command", "A server that reads its split from a variable", required=True)
