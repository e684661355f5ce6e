"""Measures what a bundle of experts costs, and checks its answers: `make bench-bundle`.

The parts:

- mix: many users and room for two experts; compares answers with servers of single experts
- matrix: switching times between all pairs of experts, warm and cold, with room for one
- memory: the memory of the processes during many switches
- itl: a resident's inter-token latency while experts with 110M parameters are loaded
- itl-large: the same for a resident with 110M parameters while one with 1.1B is loaded
- alternatives: a process for each expert, and loading on demand with room for one
- large: a switch to 1.1B int8 weights, compared with the time to read the file once

If a part fails, the bench reports it and measures the others. Nothing else may use the cores.
Results are in var/bench/bundle.json, which is complete after every part.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from benchmarking.machine import describe_machine
from inference_api.settings.bundle_file import BundleMember, RowBounds
from lab.benches.bundle.itl import measure_itl
from lab.benches.bundle.mix import measure_alternatives, measure_mix
from lab.benches.bundle.servers import experts_of
from lab.benches.bundle.switches import measure_large, measure_matrix, measure_memory
from lab.kit.servers import ROOT, exit_on_sigterm
from lab.peers.models import random_model

RESULTS = ROOT / "var" / "bench" / "bundle.json"
SEED = 20
CONTEXT_TOKENS = 512
ROWS = RowBounds(min=1, max=8)
ITL_STREAMS = 4

Part = Callable[[], tuple[Any, str]]  # returns figures, also as text


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    results = Results(describe_machine("torch", "gunicorn"))
    parts = _parts(arguments)
    for name in arguments.parts:
        results.measure(name, parts[name])
    sys.exit(1 if results.has_failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, default=ROOT / "models" / "bundle.yaml")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--requests", type=int, default=500, help="of the mix")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--max-ttft", type=float, default=2.0, help="in s, of what is goodput")
    parser.add_argument("--laps", type=int, default=5, help="switches between each two experts")
    parser.add_argument("--switches", type=int, default=200, help="of the memory's part")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the streams of itl")
    parser.add_argument("--arrivals", type=int, default=200, help="of each alternative, twice")
    parser.add_argument("--per-s", type=float, default=10.0, help="arrivals")
    parser.add_argument("--large-laps", type=int, default=7)
    return parser.parse_args()


class Results:
    """Prints measurements, and keeps them in a file."""

    def __init__(self, machine: str) -> None:
        self.has_failed = False
        self._figures: dict[str, Any] = {"machine": machine, "parts": {}}
        print(machine, flush=True)

    def measure(self, name: str, part: Part) -> None:
        print(f"\n### {name}\n", flush=True)
        began_s = time.perf_counter()
        try:
            figures, text = part()
        except Exception:
            self.has_failed = True
            print(f"{name} has failed:\n{traceback.format_exc()}", flush=True)
            return
        print(f"{text}\n\n({time.perf_counter() - began_s:.0f} s)", flush=True)
        self._figures["parts"][name] = _plain(figures)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(self._figures, indent=1))


def _parts(arguments: argparse.Namespace) -> Mapping[str, Part]:
    def experts() -> list[BundleMember]:
        own = {"context": CONTEXT_TOKENS, "rows": ROWS, "quantisation": "int8"}
        return [each.model_copy(update=own) for each in experts_of(arguments.bundle)]

    draw = Random(SEED)
    return {
        "mix": lambda: measure_mix(
            experts(), arguments.requests, arguments.users, arguments.max_ttft, draw
        ),
        "matrix": lambda: measure_matrix(experts(), arguments.laps, draw),
        "memory": lambda: measure_memory(experts(), arguments.switches, draw),
        "itl": lambda: measure_itl(
            experts()[0],
            [random_expert("110m", "int8"), random_expert("110m", "int4")],
            ITL_STREAMS,
            arguments.seconds,
        ),
        "itl-large": lambda: measure_itl(
            random_expert("110m", "int8"),
            [random_expert("1.1b", "int8"), random_expert("110m", "int4")],
            ITL_STREAMS,
            arguments.seconds,
        ),
        "alternatives": lambda: measure_alternatives(
            experts(), arguments.arrivals, arguments.users, arguments.per_s, draw
        ),
        "large": lambda: measure_large(
            random_expert("1.1b", "int8"), experts()[0], arguments.large_laps
        ),
    }


PARTS = ("mix", "matrix", "memory", "itl", "alternatives", "itl-large", "large")


def random_expert(size: str, quantisation: str) -> BundleMember:
    """Returns an expert with random weights, which are made if necessary."""
    return BundleMember.model_validate(
        {
            "name": f"{size} {quantisation}",
            "source": str(random_model(size)),
            "quantisation": quantisation,
            "context": CONTEXT_TOKENS,
            "rows": {"min": 1, "max": 8},
        }
    )


def _plain(value: Any) -> Any:
    """Converts a value to plain JSON values."""
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {_key(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _key(key: object) -> str:
    return " -> ".join(key) if isinstance(key, tuple) else str(key)
