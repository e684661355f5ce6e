"""The fleet's demo: its hours, its files and its verdict."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.config import read_config
from lab.demo.cluster.files import Addresses
from lab.demo.cluster.load import RequestOutcome
from lab.demo.cluster.processes import DemoFailed
from lab.demo.fleet.files import write_fleet
from lab.demo.fleet.members import OUT_TOKENS, Member
from lab.demo.fleet.picture import draw
from lab.demo.fleet.play import Day, Look
from lab.demo.fleet.speeds import EASE, rate_within_levels
from lab.demo.fleet.verdict import replica_s, verdict

PERF = {"decodeParms": {"alpha": 20.0, "beta": 0.5}, "prefillParms": {"gamma": 20.0, "delta": 0.01}}
CHAT = Member("chat", "Hearth", {}, 0.2, 0.0, 0.7, perf=PERF, peak_per_s=4.0)
CODE = replace(
    CHAT,
    name="code",
    title="llama.cpp",
    keys={"engine": "llama-server", "model": "code.gguf"},
    dawn=0.3,
    dusk=1.0,
)
GOOD = RequestOutcome(1.0, 2.0, 100.0, 25.0)


def day(*running: int, outcomes: tuple[RequestOutcome, ...] = (GOOD,) * 20) -> Day:
    looks = [Look(10.0 * i, {"chat": n}, {"chat": n}) for i, n in enumerate(running)]
    return Day(10.0 * (len(running) - 1), [CHAT], {"chat": outcomes}, looks)


def test_a_server_is_asked_between_its_dawn_and_its_dusk_most_at_noon() -> None:
    rates = [CODE.rate_at(at_s, 100.0) for at_s in range(101)]
    assert not any([*rates[:31], rates[100]])
    assert max(rates) == rates[65] == pytest.approx(CODE.peak_per_s)


def test_the_controller_reads_the_fleets_file(tmp_path: Path) -> None:
    config, system = read_config(write_fleet(tmp_path, [CHAT, CODE], 5.0, Addresses(1, 2, 3)))
    assert config.models_of_sleepers(system) == {"chat": ["chat"], "code": ["code"]}
    assert set(config.engines(system)) == {"code"}


def test_a_day_is_judged_by_levels_losses_sleep_and_cost(tmp_path: Path) -> None:
    kept = day(0, 1, 2, 1, 0, 0)
    assert replica_s(kept) == 40.0
    assert all(each.is_kept for each in verdict(kept))
    draw(kept, tmp_path / "day.svg")
    lost = day(0, 2, 2, 0, outcomes=(GOOD,) * 20 + (RequestOutcome(1.0, 2.0, fault="cut"),))
    never_slept = day(2, 2, 2, 2)
    assert [each.text for each in verdict(lost) if not each.is_kept] == ["1 requests lost (0)"]
    assert [each.is_kept for each in verdict(never_slept)] == [True, True, False, False]


def test_the_peak_is_more_than_one_replica_answers_within_its_levels() -> None:
    points = [
        {"rows": rows, "ms": ms, "standardError": 0.1} for rows, ms in ((1, 20.0), (8, 110.0))
    ]
    curve = {"decodeMs": points, "promptTokenMs": [{"rows": 1, "ms": 1.0, "standardError": 0.1}]}
    at_most = rate_within_levels(replace(CHAT, perf={"serviceCurve": curve}))
    assert 0 < at_most < 8 / (OUT_TOKENS * 0.11)
    slow = {**curve, "decodeMs": [{**each, "ms": 5 * each["ms"]} for each in points]}
    too_slow = replace(CHAT, perf={"serviceCurve": slow})
    with pytest.raises(DemoFailed, match=r"Hearth does not meet its levels with 0\.2 of a core"):
        rate_within_levels(too_slow)
    assert rate_within_levels(replace(too_slow, planned_itl_ms=EASE * 100.0)) > 0
