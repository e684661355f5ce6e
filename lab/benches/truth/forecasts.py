"""Compares a controller's forecasts for two servers with what follows: `make bench-forecasts`.

    python -m lab.benches forecasts [--hours 5] [--period 10]

The embedded model and SmolLM2 are served behind one proxy, each limited to a share of a core, with
rates that rise and fall all the time. Before each period the controller forecasts arrivals, TTFT
and ITL, with intervals that should hold nine times in ten. The output is how many held, and their
widths. The exit status is 1 if fewer held than chance explains. Run it on a machine that does
nothing else; measuring the servers takes two minutes before the first period.
"""

import argparse
import logging
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarking.load.tokenizers import SERVER
from cluster.controller.forecasts import (
    SHARE,
    JudgedForecast,
    JudgedForecasts,
    Score,
    score_of,
)
from cluster.controller.journal import Journal, past_in
from lab.demo.cluster.processes import DemoFailed
from lab.demo.fleet.members import Member
from lab.demo.fleet.play import play
from lab.demo.fleet.speeds import LOAD, with_speed
from lab.kit.servers import exit_on_sigterm
from scripts.fetch_smollm2 import fetch_smollm2

MOST = 0.75  # share of a server's highest rate within the planned levels
CLEAR = 2.0  # standard errors
MAX_BYTES = 2**30  # bytes of a journal, whose lines take kilobytes

Scores = Mapping[tuple[str, str], Score]
"""Keys: a server and a figure."""


@dataclass(frozen=True, slots=True)
class BusyMember(Member):
    """A server with one replica that always gets requests, at rates that rise and fall."""

    least_replicas: int = 1
    most_replicas: int = 1

    def rate_at(self, at_s: float, day_s: float) -> float:
        """Returns a rate between 0.1 and 0.9 times MOST, in two waves that last for minutes."""
        slow, fast = (math.sin(2 * math.pi * at_s / wave_s) for wave_s in (421.0, 97.0))
        return self.peak_per_s * MOST / LOAD * (0.5 + 0.25 * slow + 0.15 * fast)


def servers() -> list[BusyMember]:
    smollm2 = {"model": str(fetch_smollm2()), "settings": {"MODEL_NAME": "smollm2"}}
    return [
        BusyMember("tiny", "hearth-tiny", {"settings": {"MODEL_NAME": "tiny"}}, 0.3, 0.0, 1.0),
        BusyMember("smollm2", "SmolLM2", smollm2, 0.8, 0.0, 1.0, tokenizer=SERVER),
    ]


def scores(judged: Iterable[JudgedForecasts]) -> Scores:
    """Returns the scores of all forecasts that had an interval."""
    every: defaultdict[tuple[str, str], list[JudgedForecast]] = defaultdict(list)
    for cycle in judged:
        for server, figures in cycle.items():
            for figure, one in figures.items():
                every[server, figure].append(one)
    found = {key: score_of(each) for key, each in sorted(every.items())}
    return {key: score for key, score in found.items() if score is not None}


def lines(found: Scores) -> Iterator[str]:
    yield "| server | forecast | held | of | share | median width | median error |"
    yield "|" + "---|" * 7
    for (server, figure), each in found.items():
        yield _line(server, figure, each)
    held, judged = _held(found)
    share = held / judged if judged else 0.0
    yield f"| all | | {held} | {judged} | {share:.1%} | | |"


def _line(server: str, figure: str, score: Score) -> str:
    return (
        f"| {server} | {figure} | {score.held} | {score.judged} | {score.held / score.judged:.1%} "
        f"| ± {score.half_width_ratio:.0%} | {score.error_ratio:.0%} |"
    )


def is_kept(found: Scores) -> bool:
    """Returns whether nine in ten intervals held, allowing for chance."""
    held, judged = _held(found)
    return judged > 0 and held >= SHARE * judged - CLEAR * math.sqrt(judged * SHARE * (1 - SHARE))


def _held(found: Scores) -> tuple[int, int]:
    return sum(each.held for each in found.values()), sum(each.judged for each in found.values())


def scores_in(journal: Path) -> Scores:
    """Returns the scores of a controller's whole journal."""
    return scores(past_in(Journal(journal, MAX_BYTES).read_back(MAX_BYTES), 0.0, 0.0).judged)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=5.0)
    parser.add_argument("--period", type=float, default=10.0, help="seconds")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    exit_on_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="hearth-forecasts-"))
    print(f"Logs are in {folder}.", file=sys.stderr, flush=True)
    report = partial(print, file=sys.stderr, flush=True)
    try:
        members = [with_speed(each, folder / "measured") for each in servers()]
        play(members, folder, 3600 * arguments.hours, report, arguments.period)
    except DemoFailed as error:
        sys.exit(f"The bench cannot go on: {error}")
    found = scores_in(folder / "cluster.jsonl")
    print(f"{arguments.hours:g} hours in periods of {arguments.period:g} s:\n")
    print("\n".join(lines(found)))
    return 0 if is_kept(found) else 1
