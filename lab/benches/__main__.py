"""`python -m lab.benches NAME [--publish] [OPTION]...`, or `make bench-NAME`: runs a bench, which
prints a table and the machine, and writes both to files (`lab/kit/results.py`)."""

import sys
from importlib import import_module

from lab.kit import results

HELP = {"-h", "--help"}
PUBLISH = "--publish"

MODULES = {
    "agents": "state.agents",
    "answers": "engine.answers",
    "auto": "engine.auto",
    "bundle": "bundle.bench",
    "client": "serve.client",
    "constraints": "engine.constraints",
    "context": "state.context",
    "costs": "engine.costs",
    "cuda": "engine.cuda",
    "draw": "engine.draw",
    "experts": "engine.experts",
    "forecasts": "truth.forecasts",
    "hybrids": "serve.hybrids",
    "itl": "engine.itl",
    "kernels": "engine.kernels",
    "loop": "loop.bench",
    "optimizer": "optimizer.bench",
    "peers": "serve.peers",
    "pipeline": "weights.pipeline",
    "prefix": "engine.prefix",
    "proxy": "proxy.bench",
    "quality": "engine.quality",
    "replicas": "replicas.bench",
    "router": "router.bench",
    "scaling": "scaling.bench",
    "serve": "serve.bench",
    "simulator": "truth.simulator",
    "solver": "optimizer.solver",
    "step": "engine.step",
    "stream": "engine.stream",
    "table": "table.bench",
    "truth": "truth.bench",
    "weights": "weights.bench",
}


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in MODULES:
        usage = f"python -m lab.benches NAME [{PUBLISH}] [OPTION]..."
        sys.exit(f"{usage}; NAME is one of: {', '.join(MODULES)}")
    own = [each for each in arguments if each != PUBLISH]
    sys.argv = [f"bench-{name}", *own]
    bench = import_module(f"lab.benches.{MODULES[name]}").main
    sys.exit(bench() if HELP & {*own} else results.run(name, bench, own, PUBLISH in arguments))


if __name__ == "__main__":
    main()
