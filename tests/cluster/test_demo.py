"""The demo: its verdict, and its pieces together with local processes and the mock."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.demo.__main__ import main
from cluster.demo.load import Asked, Load, Request
from cluster.demo.machines import local_place
from cluster.demo.picture import draw
from cluster.demo.play import wait_for_service
from cluster.demo.processes import running_services
from cluster.demo.story import MOCK, MODEL_NAME, Backend, Story
from cluster.demo.verdict import Run, failed, most_changes, periods_to_follow, verdict
from cluster.demo.watch import Look, Row, Watch

DEADLINE_S = 60.0
STORY = Story(
    backend=Backend(
        {**MOCK.settings, "MOCK_TOKENS_PER_SECOND": "160"},
        {"alpha": 6.25, "beta": 0.01},
        {"gamma": 6.25, "delta": 0.0001},
    ),
    period_s=1.5,
    tunes=False,
    user_rows=5,
)
GOOD = Asked(1.0, 2.0, 100.0, 25.0)


def row(at_s: float, *, has_changed: bool = False) -> Row:
    return Row(at_s, 4.0, 1, 1, 100.0, 90.0, 25.0, 25.0, 1.0, has_changed, "")


def run(*looks: Look, asked: tuple[Asked, ...] = (GOOD,) * 100, **fields: object) -> Run:
    return replace(Run(Story(), asked, looks, (row(32.0),)), **fields)  # type: ignore[arg-type]


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
        (run(*FOLLOWED, asked=(GOOD,) * 99 + (Asked(1, 2, fault="cut"),)), ["1 requests lost"]),
        (run(*FOLLOWED, asked=(GOOD,) * 90 + (Asked(1, 2, 1900, 25),) * 10), ["90.0% of 100"]),
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


@pytest.mark.parametrize(
    "option", ["--period=0", "--period=nan", "--period=1e99", "--rate=-1", "--rate=x"]
)
def test_numbers_beyond_their_bounds_are_refused(option: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option])


def test_replicas_follow_a_load_and_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    rate_per_s = 8.0

    def eventually(watch: Watch, load: Load, holds: Callable[[Look], bool]) -> None:
        until_s = load.now_s + DEADLINE_S
        while not (watch.looks and holds(watch.looks[-1])):
            assert load.now_s < until_s, watch.rows[-3:]
            watch.until(load.now_s + 0.1, lambda _row: None)

    with (
        local_place(tmp_path) as place,
        running_services(tmp_path, STORY, place.actuator) as (addresses, token),
    ):
        wait_for_service(addresses)
        request = Request(addresses.proxy, token, MODEL_NAME, STORY.out_tokens)
        load = Load(request, lambda _at_s: rate_per_s, seed=0)
        try:
            watch = Watch(addresses.url(addresses.controller), load, STORY)
            eventually(watch, load, lambda look: look.desired == look.ready == 1)
            rate_per_s = 30.0
            eventually(watch, load, lambda look: look.desired == look.ready >= 2)
            rate_per_s = 4.0
            eventually(watch, load, lambda look: look.desired == look.ready == 1)
        finally:
            load.end()
    seen = Run(STORY, load.asked, watch.looks, watch.rows)
    assert len(load.asked) == load.num_sent > 0
    assert failed(seen) == []
    assert most_changes(seen) == 1
