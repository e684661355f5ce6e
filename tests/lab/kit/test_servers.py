"""What benches start does not outlive them."""

import signal
import subprocess
import sys

import psutil

from lab.kit.servers import ROOT, TIMEOUT_S, eventually, free_port


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)


def test_a_bench_that_is_terminated_takes_its_server_with_it() -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "lab.benches", "stream"], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    children = psutil.Process(bench.pid).children
    eventually(lambda: len(children(recursive=True)) >= 2)  # gunicorn and its worker
    started = children(recursive=True)
    bench.send_signal(signal.SIGTERM)
    assert bench.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    eventually(lambda: not any(process.is_running() for process in started))
