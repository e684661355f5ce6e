"""`python -m weights drive`: find the best split of a model in an engine that runs elsewhere.

    python -m weights drive exo --url http://10.0.0.1:52415 --model mlx-community/Qwen3-30B-A3B-4bit
    python -m weights drive llama.cpp --model qwen3-8b.gguf --rpc 10.0.0.2:50052,10.0.0.3:50052
    python -m weights drive vllm --model Qwen/Qwen3-8B --layers 36 --stages 3 -- \\
        vllm serve Qwen/Qwen3-8B --pipeline-parallel-size 3

What is measured is told to the session, in the store of the weights service: another run goes on
where this one ended, and /weights/sessions shows it.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from weights.app import create_service
from weights.drivers import Driver
from weights.drivers.exo import ExoDriver, ExoPlan
from weights.drivers.gguf_layers import MAX_LAYERS, read_num_layers
from weights.drivers.http import Http
from weights.drivers.llama_cpp import LlamaBench, LlamaCppDriver
from weights.drivers.loop import Search, drive
from weights.drivers.server import ServerDriver, ServerPlan
from weights.errors import DriveError, EngineUnusable, WeightsError
from weights.settings import load_settings

VARIABLES = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
URL = re.compile(r"https?://[^\s/]+.*")
HOST = re.compile(r"[A-Za-z0-9_.\-\[\]:]+:\d{1,5}")
MAX_TRIALS, MAX_STAGES, MAX_TOKENS, MAX_REPEATS = 1000, 64, 65_536, 100


def main(argv: Sequence[str]) -> None:
    """Exits with 0 where a split was found, else with 1 and the reason."""
    given = _parse(argv)
    service = create_service(load_settings())
    try:
        with _driver(given) as driver:
            session_id = given.session or f"{given.engine}-{given.model.rstrip('/')}"[:256]
            search = Search(service, session_id, driver.ring, given.min_layers)
            drive(driver, search, given.trials, lambda line: print(line, flush=True))
    except (DriveError, WeightsError) as error:
        sys.exit(f"weights drive {given.engine}: {error}")
    finally:
        service.close()


def _driver(given: argparse.Namespace) -> Driver:
    """Raises EngineUnusable."""
    if given.engine == "exo":
        plan = ExoPlan(
            model=given.model,
            nodes=given.nodes,
            replaces=given.replace,
            generated_tokens=given.tokens,
            repeats=given.repeats,
            load_timeout_s=given.timeout,
        )
        return ExoDriver(Http(given.url), plan)
    if given.engine == "llama.cpp":
        bench = LlamaBench(
            program=given.program,
            model=Path(given.model),
            rpc=given.rpc,
            local=given.local,
            prompt_tokens=given.prompt_tokens,
            generated_tokens=given.tokens,
            repeats=given.repeats,
            timeout_s=given.timeout,
            options=tuple(given.command),
        )
        return LlamaCppDriver(bench)
    return ServerDriver(_server_plan(given))


def _server_plan(given: argparse.Namespace) -> ServerPlan:
    """Raises EngineUnusable."""
    if not given.command:
        raise EngineUnusable("no command; give the server's after --")
    return ServerPlan(
        command=tuple(given.command),
        variable=VARIABLES.get(given.engine) or given.variable,
        stages=given.stages,
        num_layers=given.layers or read_num_layers(Path(given.model)),
        url=given.url.rstrip("/"),
        model=given.model,
        environment=dict(os.environ),  # noqa: TID251 - handed on to the server
        users=given.users,
        generated_tokens=given.tokens,
        rounds=given.repeats,
        start_timeout_s=given.timeout,
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    argv, command = _cut(argv)
    parser = argparse.ArgumentParser(
        prog="weights drive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    exo = engines.add_parser("exo", help="an exo cluster, through its API")
    exo.add_argument(
        "--url", type=_url, required=True, help="address of any node: http://host:52415"
    )
    exo.add_argument(
        "--nodes", type=_list, default=(), help="node ids, comma-separated; default: all"
    )
    exo.add_argument("--replace", action="store_true", help="delete running instances")
    llama = engines.add_parser("llama.cpp", help="llama.cpp's RPC servers, with llama-bench")
    llama.add_argument("--rpc", type=_hosts, required=True, help="host:port, comma-separated")
    llama.add_argument(
        "--local", type=_list, default=(), help="devices of this machine, such as CUDA0"
    )
    llama.add_argument("--program", default="llama-bench", help="path of llama-bench")
    llama.add_argument("--prompt-tokens", type=_count(0, MAX_TOKENS), default=0,
        help="per request; default 0: measure generation only")  # fmt: skip
    for name in (*VARIABLES, "command"):
        server = engines.add_parser(name, help=f"a server that reads {_read_by(name)}")
        server.add_argument("--stages", type=_count(2, MAX_STAGES), required=True)
        server.add_argument("--layers", type=_count(2, MAX_LAYERS),
            help="number of layers; default: read from the --model folder or file")  # fmt: skip
        server.add_argument("--url", type=_url, default="http://127.0.0.1:8000/v1")
        server.add_argument("--users", type=_count(1, 512), default=8)
        if name == "command":
            server.add_argument("--variable", type=_name, required=True)
    for each in engines.choices.values():
        each.add_argument("--model", required=True)
        each.add_argument("--session", help="default: ENGINE-MODEL")
        each.add_argument("--trials", type=_count(1, MAX_TRIALS), default=20, help="at most")
        each.add_argument("--min-layers", type=_count(1, MAX_LAYERS), default=1)
        each.add_argument("--tokens", type=_count(1, MAX_TOKENS), default=128)
        each.add_argument("--repeats", type=_count(1, MAX_REPEATS), default=3)
        each.add_argument(
            "--timeout", type=_count(1, 86_400), default=1800, help="seconds per trial"
        )
    return parser.parse_args(argv, argparse.Namespace(command=command))


def _cut(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes before `--`, and after it: the engine's own."""
    given = list(argv)
    if "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _read_by(name: str) -> str:
    return VARIABLES.get(name, "its split from a variable")


def _count(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number, {least} to {most}")
        return int(text)

    return read


def _url(text: str) -> str:
    if not URL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://10.0.0.1:8000")
    return text


def _list(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _hosts(text: str) -> tuple[str, ...]:
    hosts = _list(text)
    wrong = [each for each in hosts if not HOST.fullmatch(each)]
    if wrong or not hosts:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 10.0.0.2:50052")
    return hosts


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a variable")
    return text
