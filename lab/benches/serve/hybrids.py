"""Compares models with recurrent layers with llama.cpp and its fork ik_llama.cpp, on the same Q8_0
files: `make bench-hybrids`.

The models have published shapes and random weights. All contestants answer the same loads in turn,
ours over HTTP. Tokens/s are new tokens over the whole time, prefill included, or prompt tokens if
only one new token is requested. Goals: 1.3 times llama.cpp with 8 and 32 users and in prefill, 1.1
times with one user. Nothing else may use the cores.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarking.machine import describe_machine
from lab.benches.serve.peers import LOADS, Contest, Load, contests, installed
from lab.kit.servers import exit_on_sigterm
from lab.models.random_hybrid import SHAPES, make_random_hybrid
from lab.peers import report
from lab.peers.contest import Contestant, gguf_peers, hearth
from lab.peers.install import GGUF_READERS, IK_LLAMA_CPP, LLAMA_CPP, Recipe
from lab.peers.models import MODELS, gguf_model

TYPE = "Q8_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--peers", nargs="*", choices=GGUF_READERS, default=[LLAMA_CPP.name, IK_LLAMA_CPP.name]
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        choices=LOADS,
        default=["1", "8", "32", "prefill-512", "prefill-8192"],
        help="users or kind",
    )
    parser.add_argument("--times", type=int, default=3, help="alternations")
    arguments = parser.parse_args()
    exit_on_sigterm()
    print(f"{describe_machine('gunicorn')}\n")
    left_out: dict[str, str] = {}
    recipes = list(installed(arguments.peers, left_out))
    lines = []
    for name in arguments.models:
        file = hybrid_file(name)
        for loads in contests(arguments.loads):
            with TemporaryDirectory() as logs, ExitStack() as stack:
                starts = _contestants(file, loads, recipes, Path(logs))
                contest = Contest(stack, starts, left_out)
                for load in loads:
                    measured = contest.measure(load, arguments.times)
                    lines += report.rows(report.Cell(name, TYPE, load.name), measured)
                    print(lines[-1], flush=True)
    print("\n".join(["", report.HEAD, *lines]))


def hybrid_file(name: str) -> Path:
    """Returns the model's GGUF file, which the first call makes."""
    folder = MODELS / name
    if not (folder / "model.safetensors").exists():
        make_random_hybrid(name, folder)
    return gguf_model(folder, TYPE)


def _contestants(
    file: Path, loads: Sequence[Load], recipes: Sequence[Recipe], logs: Path
) -> Iterator[AbstractContextManager[Contestant]]:
    users = max(load.users for load in loads)
    context = max(load.prompt_tokens + load.max_tokens for load in loads)
    settings = {"SPECULATION": "off"}
    yield hearth(TYPE, file, users, context, logs / "ours", settings)
    sizes = ["--users", str(users), "--context", str(context)]
    yield from gguf_peers(recipes, lambda: file, TYPE, sizes, logs)
