"""`python -m lab.benches NAME [OPTION]...`, or `make bench-NAME`: each prints a table and the
machine."""

import sys
from importlib import import_module

MODULES = {
    "answers": "engine.answers",
    "auto": "engine.auto",
    "bundle": "bundle.bench",
    "client": "serve.client",
    "constraints": "engine.constraints",
    "costs": "engine.costs",
    "cuda": "engine.cuda",
    "draw": "engine.draw",
    "experts": "engine.experts",
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
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in MODULES:
        sys.exit(f"python -m lab.benches NAME [OPTION]...; NAME is one of: {', '.join(MODULES)}")
    sys.argv[:2] = [f"bench-{name}"]
    sys.exit(import_module(f"lab.benches.{MODULES[name]}").main())


if __name__ == "__main__":
    main()
