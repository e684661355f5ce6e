"""Runs a cluster on this machine under a load that doubles and falls again, or on machines that
become slower: `python -m lab.demo.cluster`.

Prints for each period how replicas follow the load, and judges the run at the end.
"""

import argparse
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lab.demo.cluster.machines import local_place, ray_place
from lab.demo.cluster.measured import measured
from lab.demo.cluster.picture import draw
from lab.demo.cluster.play import Options, play
from lab.demo.cluster.processes import DemoFailed
from lab.demo.cluster.show import HEAD, line_of, verdict_text
from lab.demo.cluster.story import SLOW_MACHINE, Story
from lab.demo.cluster.verdict import failed, verdict
from lab.demo.cluster.watch import Row


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.kill_node and options.actuator == "local":
        sys.exit("--kill-node needs nodes; leave out --actuator local.")
    if options.slow_machine and options.actuator == "ray":
        sys.exit("--slow-machine holds processes of this machine; leave out --actuator ray.")
    story, is_local = _story(options), options.slow_machine or options.actuator == "local"
    logging.basicConfig(level=logging.WARNING)
    # SIGTERM ends the demo like Ctrl-C: in order, with all processes that it started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="hearth-demo-"))
    print(f"{story.end_s / 60:.1f} minutes; logs in {folder}", flush=True)
    try:
        if story.shares is not None:
            print("First: how fast one replica is.", flush=True)
            story = measured(story, folder / "measured", options.rate)
            print(f"The load is {story.rate_per_s:.1f} requests a second.", flush=True)
        with local_place(folder) if is_local else ray_place() as place:
            print(HEAD, flush=True)
            run = play(story, place, Options(folder, options.kill_node), _print_row)
    except DemoFailed as error:
        sys.exit(f"The demo cannot go on: {error}")
    except KeyboardInterrupt:
        sys.exit("Ended before its time; all that it started has ended too.")
    findings = verdict(run)
    print(f"\n{verdict_text(findings)}")
    for each in failed(run)[:5]:
        print(f"     a request of {each.began_s:.1f} s: {each.fault}")
    if options.picture is not None:
        draw(run, options.picture)
        print(f"The picture is {options.picture}.")
    return 0 if all(each.is_kept for each in findings) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--period", type=_within(1, 600), help="seconds per cycle")
    parser.add_argument("--rate", type=_within(0.1, 100), help="requests per second")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times between requests")
    parser.add_argument("--actuator", choices=("ray", "local"))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kill-node", action="store_true", help="kill a Ray node under load")
    what.add_argument(
        "--slow-machine", action="store_true", help="slow down real replicas under constant load"
    )
    parser.add_argument("--picture", type=Path, help="draw a chart of the run into this SVG")
    return parser


def _within(least: float, most: float) -> Callable[[str], float]:
    """Returns a reader of numbers within bounds, for argparse."""

    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text[:50]} is not between {least:g} and {most:g}")
        return value

    return number


def _story(options: argparse.Namespace) -> Story:
    story = SLOW_MACHINE if options.slow_machine else Story()
    given = {"period_s": options.period, "rate_per_s": options.rate, "seed": options.seed}
    return replace(story, **{name: value for name, value in given.items() if value is not None})


def _print_row(row: Row) -> None:
    print(line_of(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
