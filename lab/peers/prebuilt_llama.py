"""Runs llama.cpp's own server from a package that has it compiled, in the package's environment.

Without a model it prints the package's version.
"""

import argparse
import signal

import xllamacpp  # type: ignore[import-not-found]  # only in the peer's environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--context", type=int, default=512, help="tokens of one user")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--alias", help="the model's name; default: its path")
    parser.add_argument("--metrics", action="store_true", help="answer /metrics")
    arguments = parser.parse_args()
    if arguments.model is None:
        print(xllamacpp.__version__)
        return
    params = xllamacpp.CommonParams()
    params.model.path, params.port = arguments.model, arguments.port
    params.n_parallel, params.n_ctx = arguments.users, arguments.users * arguments.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    if arguments.alias is not None:
        params.model_alias = {arguments.alias}
    params.endpoint_metrics = arguments.metrics
    params.cache_prompt, params.cache_ram_mib, params.ui = False, 0, False
    server = xllamacpp.Server(params)  # the server ends with this object
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main()
