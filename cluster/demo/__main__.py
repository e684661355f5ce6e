"""`python -m cluster.demo`: a cluster on this machine, and a load that doubles and comes back.

What follows the load, and how well, is printed period by period, and judged at the end.
"""

import argparse
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cluster.demo.machines import Place, local_place, ray_place
from cluster.demo.picture import draw
from cluster.demo.play import Options, play
from cluster.demo.processes import DemoFailed
from cluster.demo.show import HEAD, line_of, verdict_text
from cluster.demo.story import Story
from cluster.demo.verdict import failed, verdict
from cluster.demo.watch import Row


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.kill_node and options.actuator != "ray":
        sys.exit("--kill-node needs nodes; leave out --actuator local.")
    story = Story(period_s=options.period, rate_per_s=options.rate, seed=options.seed)
    logging.basicConfig(level=logging.WARNING)
    # SIGTERM ends it as Ctrl-C does: in order, with all that it started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="hearth-demo-"))
    print(f"{story.end_s / 60:.1f} minutes; logs in {folder}", flush=True)
    try:
        with _place(options.actuator, folder) as place:
            print(HEAD, flush=True)
            run = play(story, place, Options(folder, options.kill_node), _tell)
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
    parser.add_argument("--period", type=_within(1, 600), default=5.0, help="seconds of a cycle")
    parser.add_argument("--rate", type=_within(0.1, 100), default=5.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0, help="of the times between requests")
    parser.add_argument("--actuator", choices=("ray", "local"), default="ray")
    parser.add_argument("--kill-node", action="store_true", help="kill a node of Ray under load")
    parser.add_argument("--picture", type=Path, help="draw the run into this SVG")
    return parser


def _within(least: float, most: float) -> Callable[[str], float]:
    """A number within bounds, for argparse."""

    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:  # NaN is not
            raise argparse.ArgumentTypeError(f"{text[:50]} is not within {least:g} and {most:g}")
        return value

    return number


def _place(kind: str, folder: Path) -> AbstractContextManager[Place]:
    return ray_place() if kind == "ray" else local_place(folder)


def _tell(row: Row) -> None:
    print(line_of(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
