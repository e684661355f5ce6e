"""Compares tokens/s of 1 to 3 replicas behind the proxy with linear growth: `make bench-replicas`.

Replicas are API processes with the embedded model. The actuator for local processes starts them,
lists them for the proxy and stops them. Replicas are pinned to cores in turn and limited to equal
shares, so that client and proxy have cores, too. A closed loop keeps every row busy. Numbers of
replicas take turns, round after round. Nothing else may use the cores.
"""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from threading import Event

import jwt
import psutil
from pydantic import SecretStr

from benchmarking.analysis.intervals import Interval, over_repeats
from benchmarking.load import targets
from benchmarking.load.generator import LoadJob, TimedExchange
from benchmarking.load.process import run_load
from benchmarking.machine import describe_machine
from cluster.actuators.local import LocalMachine, ReplicaRecord, records_in
from cluster.actuators.tended import TendedReplicas, Times
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.replicas import Group, Recipes, ReplicaState
from common.fetch import answers_ok
from lab.benches.proxy.targets import Target, serving
from lab.demo.cluster.machines import local_place
from lab.kit.servers import eventually, exit_on_sigterm, free_port
from lab.kit.shares import HeldReplicas, choose_limiter

LEAST_OF_LINEAR = 0.9
SHARE = 0.2  # cores
MOST_REPLICAS, USER_ROWS = 3, 8
STREAMS_PER_ROW = 1.5  # so that no row waits for the next request
MODEL, MAX_TOKENS = "hearth-tiny", 64
MAX_REQUESTS = 100_000
WARM_UP_S = 2.0  # until the proxy knows the replicas, and rows are full
TIMES = Times(probe_s=0.2, leave_s=2.0, drain_s=60.0)
HEALTH_INTERVAL_S = 0.5  # the proxy's; with its checks below `leave_s` on an idle machine
START_TIMEOUT_S, REQUEST_TIMEOUT_S = 120.0, 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The results of some replicas together. CPU times of processes are in seconds per token."""

    tokens_per_s: float
    proxy_s: float
    replicas_s: float
    client_share: float  # cores

    @property
    def cores(self) -> float:
        """Returns the cores that replicas, proxy and client use."""
        return self.tokens_per_s * (self.proxy_s + self.replicas_s) + self.client_share


class Fleet:
    """Replicas that are limited and pinned. One thread."""

    def __init__(self, folder: Path, held: HeldReplicas, share: float) -> None:
        self._folder, self._held, self._share = folder / "replicas", held, share
        self._group = Group("chat", "share", USER_ROWS)
        settings = {"MODEL_NAME": MODEL, "MAX_INPUT_QSIZE": "64"}
        self.upstreams_file = folder / "upstreams.yaml"
        self._actuator = TendedReplicas(
            LocalMachine(self._folder, {"CPU": MOST_REPLICAS}),
            Recipes({self._group.server: settings}, {self._group.accelerator: {"CPU": 1.0}}),
            UpstreamsFile(self.upstreams_file),
            TIMES,
        )
        self.cores = tuple(sorted(os.sched_getaffinity(0)))

    def scale(self, count: int) -> None:
        """Scale to `count` replicas. Returns when all are ready and limited, and others gone."""
        self._actuator.stop(self._group, count)
        eventually(lambda: len(self.records) <= count, START_TIMEOUT_S)
        while (present := len(self.records)) < count:
            taken = [_core_of(each) for each in self.records]
            with on_core(freest_core(self.cores, taken)):
                outcome = self._actuator.start(self._group, present + 1)
            assert not outcome.unplaced, outcome.why
        eventually(lambda: self._states() == [ReplicaState.READY] * count, START_TIMEOUT_S)
        urls = [each.url for each in self._actuator.replicas() if each.url is not None]
        self._held.hold(urls, self._share)

    @property
    def records(self) -> list[ReplicaRecord]:
        return records_in(self._folder)

    def cpu_s(self) -> float:
        """Returns the CPU time so far of the replicas that run."""
        return sum(Target(each.name, each.port, each.pid).cpu_s() for each in self.records)

    def close(self) -> None:
        self._actuator.close()

    def _states(self) -> list[ReplicaState]:
        return [each.state for each in self._actuator.replicas()]


@dataclass(frozen=True, slots=True)
class Door:
    """The proxy, and a token for it."""

    proxy: Target
    token: SecretStr

    def is_open(self) -> bool:
        """Returns whether the proxy knows of a ready replica."""
        return answers_ok(f"http://127.0.0.1:{self.proxy.port}/ready")

    def job(self, count: int, seconds: float) -> LoadJob:
        """Returns a closed loop that keeps `count` replicas busy."""
        target = targets.Endpoint("openai", f"http://127.0.0.1:{self.proxy.port}/v1", self.token)
        asked = tuple(
            target.request(MODEL, targets.Prompt("p", f"Tell me story {number}.", 0), MAX_TOKENS)
            for number in range(1000)
        )
        return LoadJob(
            target.address,
            asked * (MAX_REQUESTS // len(asked)),
            target.answer,
            time.monotonic(),
            WARM_UP_S + seconds,
            REQUEST_TIMEOUT_S,
            concurrency=round(STREAMS_PER_ROW * USER_ROWS * count),
        )


def main() -> int:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--share", type=float, default=SHARE, help="of a core, each (default: %(default)s)")
    add("--seconds", type=float, default=6.0, help="of a turn (default: %(default)s)")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1 or arguments.seconds <= 0 or arguments.rounds < 1:
        parser.error("give a share above 0 and of at most 1, seconds above 0 and a round or more")
    print(describe_machine("torch", "uvloop", "httptools"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(local_place(folder))  # ends replicas that are left
        limiter = choose_limiter()
        stack.callback(limiter.close)
        fleet = Fleet(folder, HeldReplicas(folder / "replicas", limiter), arguments.share)
        stack.callback(fleet.close)
        door = stack.enter_context(open_door(folder, fleet.upstreams_file))
        print(f"replicas take cores {', '.join(map(str, fleet.cores))} in turn, "
              f"{arguments.share:.0%} of it each, by {limiter.name}; "
              f"{USER_ROWS} user rows each; client and proxy take any core\n")  # fmt: skip
        turns = in_turn(fleet, door, arguments.seconds, arguments.rounds)
    of_linear = shares_of_linear(turns)
    print("\n".join(["", *table(turns, of_linear), "", verdict(of_linear)]))
    return 0 if is_kept(of_linear) else 1


def in_turn(fleet: Fleet, door: Door, seconds: float, rounds: int) -> dict[int, list[Turn]]:
    """Measures in turn. Returns the turns by number of replicas."""
    turns: dict[int, list[Turn]] = {count: [] for count in range(1, MOST_REPLICAS + 1)}
    fleet.scale(1)
    eventually(door.is_open, START_TIMEOUT_S)
    turn_of(fleet, door, door.job(1, seconds))  # the first answers of a process take longer
    for number in range(rounds):
        for count, so_far in turns.items():
            fleet.scale(count)
            so_far.append(turn_of(fleet, door, door.job(count, seconds)))
            print(f"round {number + 1}, {count} replicas: "
                  f"{so_far[-1].tokens_per_s:.0f} tokens/s", flush=True)  # fmt: skip
    return turns


def turn_of(fleet: Fleet, door: Door, job: LoadJob) -> Turn:
    proxy_s, replicas_s = door.proxy.cpu_s(), fleet.cpu_s()
    result = run_load(job, lambda _progress: None, Event())
    proxy_s, replicas_s = door.proxy.cpu_s() - proxy_s, fleet.cpu_s() - replicas_s
    faults = [each.error for each in result.exchanges if each.error is not None]
    if faults or result.overhead is None:
        sys.exit(f"{len(faults)} of {len(result.exchanges)} requests failed: {faults[:1]}")
    began_s = min(each.sent_s for each in result.exchanges)
    window = began_s + WARM_UP_S, began_s + job.row_timeout_s
    all_tokens = tokens_between(result.exchanges, 0.0, float("inf"))
    return Turn(
        tokens_between(result.exchanges, *window) / (window[1] - window[0]),
        proxy_s / all_tokens,
        replicas_s / all_tokens,
        result.overhead.cpu_share,
    )


def tokens_between(exchanges: Iterable[TimedExchange], from_s: float, to_s: float) -> float:
    """Returns the tokens that came in a time. Spreads an answer's tokens evenly over its pieces of
    text, because a piece may have more than one token, or part of one."""
    total = 0.0
    for each in exchanges:
        if each.usage is not None and each.chunk_s:
            part = sum(from_s <= at_s < to_s for at_s in each.chunk_s) / len(each.chunk_s)
            total += part * each.usage["completion_tokens"]
    return total


def freest_core(cores: Sequence[int], taken: Sequence[int]) -> int:
    """Returns the core with the fewest replicas, the first of equals."""
    return min(cores, key=taken.count)


def shares_of_linear(turns: Mapping[int, Sequence[Turn]]) -> dict[int, Interval]:
    """Returns, by number of replicas, tokens/s over as many times one replica's, per round."""
    return {
        count: over_repeats(
            [
                several.tokens_per_s / (count * one.tokens_per_s)
                for several, one in zip(some, turns[1], strict=True)
            ]
        )
        for count, some in turns.items()
        if count > 1
    }


def table(turns: Mapping[int, Sequence[Turn]], of_linear: Mapping[int, Interval]) -> list[str]:
    lines = [
        "| replicas | tokens/s | of linear | replicas, CPU us/token | proxy, CPU us/token "
        "| client, of a core | cores in use |",
        "|---|---|---|---|---|---|---|",
    ]
    for count, some in turns.items():
        columns = (
            str(count),
            str(over_repeats([each.tokens_per_s for each in some])),
            str(of_linear.get(count, "")),
            f"{1e6 * fmean(each.replicas_s for each in some):.1f}",
            f"{1e6 * fmean(each.proxy_s for each in some):.1f}",
            f"{fmean(each.client_share for each in some):.1%}",
            f"{fmean(each.cores for each in some):.2f}",
        )
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def verdict(of_linear: Mapping[int, Interval]) -> str:
    shares = ", ".join(f"{count} replicas {each} of linear" for count, each in of_linear.items())
    return f"{'ok  ' if is_kept(of_linear) else 'MISS'} {shares} (at least {LEAST_OF_LINEAR:g})"


def is_kept(of_linear: Mapping[int, Interval]) -> bool:
    return all(each.value >= LEAST_OF_LINEAR for each in of_linear.values())


@contextmanager
def open_door(folder: Path, upstreams_file: Path) -> Iterator[Door]:
    """Yields a proxy of one process that reads the upstreams file."""
    port, secret = free_port(), secrets.token_hex(32)
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JWT_SECRET": secret,
        "PROXY_PORT": str(port),
        "PROXY_METRICS_PORT": "0",
        "UPSTREAMS_FILE": str(upstreams_file),
        "HEALTH_INTERVAL": str(HEALTH_INTERVAL_S),
        "AUDIT_FILE": str(folder / "audit.jsonl"),
        "LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "gunicorn", "--config", "proxy/gunicorn.conf.py"]
    token = jwt.encode({"team_id": "bench", "token_id": "bench", "role": "operator"}, secret)
    with serving(command, port, environment) as pid:
        yield Door(Target("proxy", port, pid), SecretStr(token))


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pins processes that this thread starts in the block to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _core_of(record: ReplicaRecord) -> int:
    cores: Collection[int] = psutil.Process(record.pid).cpu_affinity()
    return min(cores)
