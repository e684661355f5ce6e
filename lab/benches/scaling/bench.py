"""Compares the controller with other policies over a day of 100 servers: `make bench-scaling`.

    python -m lab.benches scaling [--servers 100] [--replicas 1000] [--hours 24] [--seed 1]

Time is virtual; the optimizer's service over HTTP and the controller's cycle are real. The other
policies are replicas for the day's peak at all times, and an autoscaler by utilisation like
Kubernetes' HPA. Costs and shares depend only on the seed; the time of a cycle depends on the
machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarking.machine import describe_machine
from cluster.config import AcceleratorKeys, ClusterConfig, ServerKeys
from cluster.controller.cycle import ControllerParts, Planner
from cluster.controller.loop import Rollout
from cluster.controller.optimizer import OptimizerClient
from cluster.controller.rollout import Plan
from cluster.replicas import Group
from cluster.system import read_system
from common.fetch import OK, FetchBounds, answers_ok, ask
from lab.benches.scaling.day import STEP_S, Day, random_day
from lab.benches.scaling.fleet import Fleet
from lab.benches.scaling.pages import seconds_to_read
from lab.kit.servers import ROOT, environment, eventually, exit_on_sigterm, free_port

HPA_TARGETS = (0.5, 0.65, 0.8)
HPA_TOLERANCE, HPA_DOWN_S = 0.1, 300.0
PEAK_REPLICAS = (0.2, 1.8)  # a server's replicas at its peak, over the mean


@dataclass(frozen=True, slots=True)
class Outcome:
    policy: str
    cost: float  # dollars
    mean_replicas: float
    most_replicas: int
    started: int
    within_percent: float
    cycle_s: tuple[float, ...] = ()


def main() -> None:
    exit_on_sigterm()
    arguments = _arguments()
    with optimizer() as url:
        day = sized_day(url, arguments)
        static = solve(url, day.document_at(day.rates.max(axis=1)))
        outcomes = [by_static(day, static, arguments.seed), by_controller(day, url, arguments)]
        outcomes += [by_utilization(day, static, target, arguments.seed) for target in HPA_TARGETS]
    print(f"{describe_machine('numpy')}; seed {arguments.seed}")
    print(f"{len(day.names)} servers, {arguments.hours:g} h, period {arguments.period_s:g} s")
    for line in table(outcomes):
        print(line)
    cycle_s = outcomes[1].cycle_s
    print(
        f"{len(cycle_s)} cycles: median {np.median(cycle_s):.2f} s, 95 % "
        f"{np.percentile(cycle_s, 95):.2f} s, longest {max(cycle_s):.2f} s"
    )
    seconds, size = seconds_to_read(arguments.replicas)
    print(f"{arguments.replicas} pages of {size} bytes are read in {seconds:.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in outcomes]))


def sized_day(url: str, arguments: argparse.Namespace) -> Day:
    """Returns a day whose peak needs about `arguments.replicas`, unequally spread over servers."""
    day = random_day(arguments.servers, arguments.hours, arguments.seed)
    one = np.full(len(day.names), 1e-3)
    answer = _post(url, day.document_at(one))
    if answer["unallocated"]:
        sys.exit(f"no allocation: {answer['unallocated']}")
    details = [answer["details"][name]["maxRPM"] / 60 for name in day.names]
    rng = np.random.default_rng(arguments.seed)
    mean = arguments.replicas / len(day.names)
    wanted = mean * rng.uniform(*PEAK_REPLICAS, len(day.names))
    peaks = np.array(details) * wanted
    # Under load, other accelerators are cheaper than those for almost no load.
    for _ in range(4):
        plan = solve(url, day.document_at(peaks))
        found = dict.fromkeys(day.names, 0)
        for group, count in plan.items():
            found[group.server] += count
        counts = np.array([found[name] for name in day.names])
        peaks = peaks * wanted / np.maximum(counts, 1)
    return day.with_peaks(peaks)


def by_static(day: Day, plan: Plan, seed: int) -> Outcome:
    fleet = started(day, plan, seed)
    for number in range(day.rates.shape[1]):
        fleet.step(number)
    return outcome("replicas for the peak, always", fleet)


def by_controller(day: Day, url: str, arguments: argparse.Namespace) -> Outcome:
    document = day.document_at(day.rates[:, 0])
    system = read_system(json.dumps(document).encode())
    config = ClusterConfig(
        system=Path("-"),
        optimizer=url,
        servers={name: ServerKeys() for name in system.servers},
        accelerators={name: AcceleratorKeys() for name in system.accelerators},
        period_s=arguments.period_s,
        stabilization_s=arguments.period_s,
        tune=False,
    )
    fleet = started(day, solve(url, document), arguments.seed)
    planner = Planner(
        ControllerParts(config, system, OptimizerClient(url), fleet), fleet.replicas()
    )
    rollout = Rollout(fleet, dry_run=False)
    every, cycle_s = max(round(config.period_s / STEP_S), 1), []
    for number in range(day.rates.shape[1]):
        if number % every == 0:
            start_s = time.perf_counter()
            planner.cycle(fleet.replicas(), fleet.now_s)
            cycle_s.append(time.perf_counter() - start_s)
        rollout.step(planner.plan)
        fleet.step(number)
    return outcome("Hearth's controller", fleet, tuple(cycle_s))


def by_utilization(day: Day, peak: Plan, target: float, seed: int) -> Outcome:
    """Scales like HPA, by its documentation: every 15 s, by the ratio of utilisation to target,
    with a tolerance, down only to the highest of five minutes. Uses the peak's accelerators."""
    groups = {group.server: group for group in peak}
    first = {
        groups[name]: max(
            round(peak[groups[name]] * day.rates[index, 0] / day.rates[index].max()), 1
        )
        for index, name in enumerate(day.names)
    }
    fleet = started(day, first, seed)
    recent: dict[str, list[tuple[float, int]]] = {name: [] for name in day.names}
    for number in range(day.rates.shape[1]):
        fleet.step(number)
        there = _counts(fleet)
        for name, group in groups.items():
            # Replicas that are not ready count as idle, so that they are not requested twice.
            ratio = fleet.utilization(name) * fleet.ready(group) / there[group] / target
            wanted = there[group]
            if abs(ratio - 1) > HPA_TOLERANCE:
                wanted = max(int(np.ceil(wanted * ratio)), 1)
            seen = [each for each in recent[name] if each[0] > fleet.now_s - HPA_DOWN_S]
            recent[name] = [*seen, (fleet.now_s, wanted)]
            if wanted > there[group]:
                fleet.start(group, wanted)
            elif (highest := max(count for _, count in recent[name])) < there[group]:
                fleet.stop(group, highest)
    return outcome(f"utilisation, target {target:.0%}", fleet)


def started(day: Day, plan: Plan, seed: int) -> Fleet:
    fleet = Fleet(day, seed)
    for group, count in plan.items():
        fleet.start(group, count)
    fleet.warm()
    return fleet


def outcome(policy: str, fleet: Fleet, cycle_s: tuple[float, ...] = ()) -> Outcome:
    totals = fleet.totals
    return Outcome(
        policy,
        totals.cost_cents / 100,
        totals.replica_s / fleet.now_s,
        totals.most_replicas,
        totals.started,
        100 * totals.within / totals.requests,
        cycle_s,
    )


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| policy | cost, $ | of the peak's | replicas, mean | most | started | within SLO |"
    yield "|---|---|---|---|---|---|---|"
    peak = outcomes[0].cost
    for each in outcomes:
        yield (
            f"| {each.policy} | {each.cost:,.0f} | {each.cost / peak:.0%} "
            f"| {each.mean_replicas:.0f} | {each.most_replicas} | {each.started} "
            f"| {each.within_percent:.2f} % |"
        )


def solve(url: str, document: dict[str, Any]) -> dict[Group, int]:
    answer = _post(url, document)
    return {
        Group(name, each["accelerator"], each["maxBatch"]): each["numReplicas"]
        for name, each in answer["allocations"].items()
    }


@contextmanager
def optimizer() -> Iterator[str]:
    """Yields the URL of `python -m optimizer`, run as users run it."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "optimizer"],
            cwd=folder,
            env=environment(PYTHONPATH=ROOT, INFERNO_HOST="127.0.0.1", INFERNO_PORT=port),
            stdout=log,
            stderr=log,
        )
        try:
            eventually(lambda: answers_ok(f"http://127.0.0.1:{port}/health"), 60.0)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _post(url: str, document: dict[str, Any]) -> dict[str, Any]:
    response = ask(f"{url}/optimizeOne", FetchBounds(5.0, 120.0, 2**26), "POST", document)
    assert response.status == OK, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _counts(fleet: Fleet) -> dict[Group, int]:
    found: dict[Group, int] = {}
    for each in fleet.replicas():
        if each.state != "draining":
            found[each.group] = found.get(each.group, 0) + 1
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A virtual day of a cluster, by four policies.")
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1000, help="about so many at the peak")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--period-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    return parser.parse_args()
