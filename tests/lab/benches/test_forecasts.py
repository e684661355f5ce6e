"""`make bench-forecasts`: its loads, and what it makes of a controller's journal."""

import re
from pathlib import Path
from random import Random

from cluster.config import read_config
from cluster.controller.forecasts import Score
from cluster.controller.journal import Journal, entry_of
from lab.benches.truth.forecasts import BusyMember, is_kept, lines, scores_in
from lab.demo.cluster.files import Addresses
from lab.demo.fleet.files import write_fleet
from tests.cluster.conftest import optimizer_url  # noqa: F401
from tests.cluster.fleet import system_json
from tests.cluster.test_cycle import World
from tests.lab.demo.test_fleet import PERF

SERVER = BusyMember("tiny", "hearth-tiny", {}, 0.3, 0.0, 1.0, perf=PERF, peak_per_s=3.0)


def test_a_server_is_asked_all_the_time_and_never_at_all_that_it_can_answer() -> None:
    rates = [SERVER.rate_at(at_s, 3600.0) for at_s in range(3600)]
    assert min(rates) > 0
    assert max(rates) < 0.7 * SERVER.peak_per_s / 1.5


def test_each_server_has_one_replica_that_never_sleeps(tmp_path: Path) -> None:
    config, system = read_config(write_fleet(tmp_path, [SERVER], 10.0, Addresses(1, 2, 3)))
    assert not system.may_sleep("tiny")
    assert system.servers["tiny"]["maxNumReplicas"] == 1
    assert (config.period_s, config.scale_down_s) == (10.0, 40.0)


def test_what_a_controller_forecast_is_scored_by_its_journal(
    optimizer_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Sixty periods of a simulated cluster, of which no clock is waited for."""
    world, rng = World(optimizer_url, system_json(rate=1000, maxNumReplicas=2)), Random(5)
    journal = Journal(tmp_path / "cluster.jsonl", 2**26)
    for _ in range(60):
        requests, ttft_ms = rng.gauss(1000, 50), rng.uniform(80, 120)
        cycle = world.period(requests, ttft_ms=ttft_ms, itl_ms=rng.gauss(10, 0.2))
        journal.write(entry_of(cycle, {}, {}, False))
    found = scores_in(tmp_path / "cluster.jsonl")
    assert found.keys() == {("s", name) for name in ("arrivals_per_minute", "itl_ms", "ttft_ms")}
    assert all(each.judged > 40 for each in found.values())
    assert is_kept(found)
    *_, last = lines(found)
    held, judged = map(int, re.findall(r"\| (\d+) ", last))
    assert judged == sum(each.judged for each in found.values())
    assert 0.8 < held / judged <= 1


def test_fewer_than_nine_in_ten_are_too_few_but_for_chance() -> None:
    kept = {("s", "itl_ms"): Score(200, 173, 0.1, 0.2)}
    assert is_kept(kept)
    assert not is_kept({**kept, ("t", "itl_ms"): Score(200, 165, 0.1, 0.2)})
    assert not is_kept({})
