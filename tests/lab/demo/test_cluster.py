"""The demo: its verdict, and its pieces together with local processes and the mock."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from cluster.actuators.local import LocalMachine, records_in
from cluster.replicas import Group, Recipe
from common.fetch import answers_ok
from lab.demo.cluster.__main__ import main
from lab.demo.cluster.files import write_cluster
from lab.demo.cluster.load import Load, Request, RequestOutcome
from lab.demo.cluster.machines import local_place
from lab.demo.cluster.measured import measured
from lab.demo.cluster.picture import draw
from lab.demo.cluster.play import wait_for_service
from lab.demo.cluster.processes import DemoFailed, running_services
from lab.demo.cluster.story import MOCK, MODEL_NAME, SLOW_MACHINE, Backend, Shares, Story
from lab.demo.cluster.verdict import (
    Run,
    cycles_to_predict,
    failed,
    most_changes,
    periods_to_follow,
    verdict,
)
from lab.demo.cluster.watch import Look, Row, Watch
from lab.kit.servers import TIMEOUT_S, eventually
from lab.kit.shares import HeldReplicas

STORY = Story(
    backend=Backend(
        {**MOCK.settings, "MOCK_TOKENS_PER_SECOND": "160"},
        {
            "decodeParms": {"alpha": 6.25, "beta": 0.01},
            "prefillParms": {"gamma": 6.25, "delta": 0.0001},
        },
    ),
    period_s=1.5,
    tunes=False,
    user_rows=5,
)
GOOD = RequestOutcome(1.0, 2.0, 100.0, 25.0)
CUT = RequestOutcome(1, 2, fault="cut")
LATE = RequestOutcome(1, 2, 1900, 25)


def row(at_s: float, *, has_changed: bool = False) -> Row:
    return Row(at_s, 4.0, 1, 1, 100.0, 90.0, 25.0, 25.0, 1.0, has_changed, "")


def run(
    *looks: Look, outcomes: tuple[RequestOutcome, ...] = (GOOD,) * 100, **fields: object
) -> Run:
    return replace(Run(Story(period_s=5.0), outcomes, looks, (row(32.0),)), **fields)  # type: ignore[arg-type]


FOLLOWED = (Look(29, 1, 1), Look(36, 2, 1), Look(39, 2, 2), Look(120, 1, 1))


def test_replicas_follow_when_those_of_the_first_larger_plan_are_ready() -> None:
    assert periods_to_follow(run(*FOLLOWED)) == pytest.approx((39 - 30) / 5)
    assert periods_to_follow(run(Look(29, 1, 1), Look(36, 2, 1))) is None
    assert periods_to_follow(run(Look(29, 1, 1), Look(36, 1, 1))) is None


def test_a_run_as_promised_keeps_all_findings(tmp_path: Path) -> None:
    kept = run(*FOLLOWED)
    assert [each for each in verdict(kept) if not each.is_kept] == []
    draw(kept, tmp_path / "pictures" / "demo.svg")
    assert (tmp_path / "pictures" / "demo.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        (run(*FOLLOWED, outcomes=(GOOD,) * 99 + (CUT,)), ["1 requests lost"]),
        (run(*FOLLOWED, outcomes=(GOOD,) * 90 + (LATE,) * 10), ["90.0% of 100"]),
        (run(*FOLLOWED, Look(121, 2, 2)), ["2 replicas ready in the end"]),
        (
            run(*FOLLOWED, rows=(row(30, has_changed=True), row(35, has_changed=True))),
            ["2 changes of the plan, 2 at most"],
        ),
        (run(*FOLLOWED, killed_s=50.0), ["no replica was missed"]),
        (
            run(
                *FOLLOWED[:3], Look(51, 2, 1), Look(82, 2, 2), Look(120, 1, 1),
                killed_s=50.0, strays=1,
            ),
            ["0 streams broken by the node's death, 1 of them elsewhere", "whole again 32.0 s"],
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_promised_is_said(changed: Run, missed: list[str]) -> None:
    texts = [each.text for each in verdict(changed) if not each.is_kept]
    assert len(texts) == len(missed)
    assert all(text.startswith(start) for text, start in zip(texts, missed, strict=True))


def slow_run(*errors: float) -> Run:
    """Predictions that are so far off, one cycle after the other, on machines that got slower."""
    rows = [
        replace(row(SLOW_MACHINE.rise_s + number + 1), predicted_ttft_ms=100 * (1 + error))
        for number, error in enumerate(errors)
    ]
    before, after = Look(SLOW_MACHINE.rise_s - 1, 2, 2), Look(SLOW_MACHINE.rise_s + 9, 3, 3)
    return Run(SLOW_MACHINE, (GOOD,) * 100, (before, after), rows)


def test_predictions_are_near_again_when_all_later_ones_are_on_average() -> None:
    found = cycles_to_predict(slow_run(3.0, -0.5, 0.2, *[-0.1] * 5))
    assert found is not None
    assert found[0] == 2
    assert found[1] == pytest.approx((0.7 / 6, 0.0))
    kept = verdict(slow_run(3.0, -0.5, 0.2, *[-0.1] * 5))
    assert [each for each in kept if not each.is_kept] == []
    assert kept[0].text.startswith("from 2 cycles after the slow-down on, predictions were off by")


@pytest.mark.parametrize("errors", [[0.1] * 4, [0.1] * 10 + [0.5] * 5, [3.0] * 11 + [0.1] * 5])
def test_predictions_that_stay_or_get_wrong_are_missed(errors: list[float]) -> None:
    assert not verdict(slow_run(*errors))[0].is_kept


@pytest.mark.parametrize(
    "option", ["--period=0", "--period=nan", "--period=1e99", "--rate=-1", "--rate=x"]
)
def test_numbers_beyond_their_bounds_are_refused(option: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option])


@pytest.mark.parametrize(
    "options",
    [["--slow-machine", "--kill-node"], ["--slow-machine", "--actuator=ray"],
     ["--kill-node", "--actuator=local"]],
)  # fmt: skip
def test_what_cannot_be_shown_together_is_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(options)


def test_a_node_can_be_killed_without_naming_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_nodes() -> None:
        raise DemoFailed("no nodes here")

    monkeypatch.setattr("lab.demo.cluster.__main__.ray_place", without_nodes)
    with pytest.raises(SystemExit, match="no nodes here"):
        main(["--kill-node"])


def test_local_replicas_are_held_with_their_workers(tmp_path: Path) -> None:
    limits: dict[int, tuple[float, set[int]]] = {}

    class Noting:
        name = "notes"

        def limit(self, share: float, *pids: int) -> None:
            limits[pids[0]] = share, set(pids)

        def close(self) -> None: ...

    recipe = Recipe({"MOCK_MODEL": "1"}, {"CPU": 1})
    with local_place(tmp_path) as place:
        assert place.folder is not None
        machine = LocalMachine(place.folder, {"CPU": 2})
        try:
            for name in ("here", "there"):
                assert machine.place(name, Group("chat", "share", 1), recipe) is None
            url = next(each.url for each in machine.placed() if each.name == "here")
            assert url is not None
            eventually(lambda: answers_ok(f"{url}/health"))
            held = HeldReplicas(place.folder, Noting())
            for share in (0.5, 0.5, 0.25):
                held.hold({url}, share)
        finally:
            machine.close()
        [record] = [each for each in records_in(place.folder) if each.name == "here"]
        workers = {each.pid for each in psutil.Process(record.pid).children(recursive=True)}
    assert workers
    assert limits == {record.pid: (0.25, {record.pid, *workers})}


def test_replicas_follow_a_load_and_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    rate_per_s = 8.0

    def eventually(watch: Watch, load: Load, holds: Callable[[Look], bool]) -> None:
        until_s = load.now_s + TIMEOUT_S
        while not (watch.looks and holds(watch.looks[-1])):
            assert load.now_s < until_s, watch.rows[-3:]
            watch.until(load.now_s + 0.1, lambda _row: None)

    with (
        local_place(tmp_path) as place,
        running_services(tmp_path, partial(write_cluster, tmp_path, STORY, place.actuator)) as (
            addresses,
            token,
        ),
    ):
        wait_for_service(addresses)
        request = Request(addresses.proxy, token, MODEL_NAME, STORY.out_tokens)
        load = Load(request, lambda _at_s: rate_per_s, 30.0, seed=0)
        try:
            watch = Watch(addresses.url(addresses.controller), load, STORY)
            eventually(watch, load, lambda look: look.desired == look.ready == 1)
            rate_per_s = 30.0
            eventually(watch, load, lambda look: look.desired == look.ready >= 2)
            rate_per_s = 4.0
            eventually(watch, load, lambda look: look.desired == look.ready == 1)
        finally:
            load.end()
    seen = Run(STORY, load.outcomes, watch.looks, watch.rows)
    assert len(load.outcomes) == load.num_sent > 0
    assert failed(seen) == []
    assert most_changes(seen) == 1


def test_a_replica_is_measured_before_it_is_planned_with(tmp_path: Path) -> None:
    settings = {**MOCK.settings, "MOCK_TOKENS_PER_SECOND": "1000"}
    story = replace(SLOW_MACHINE, backend=Backend(settings, {}), shares=Shares(1.0, 0.7))
    found = measured(story, tmp_path)
    by_rows = {each["rows"]: each["ms"] for each in found.backend.perf["serviceCurve"]["decodeMs"]}
    assert set(by_rows) == {1, 2, 3, 4, 6, 8}
    # A row has at most 1000 tokens a second, and so an answer of 40 no less than 40 ms.
    assert min(by_rows.values()) > 0.5
    assert 1 < found.rate_per_s < 8 / 0.04
