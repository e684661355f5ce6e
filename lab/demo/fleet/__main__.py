"""Runs Hearth, llama.cpp's server and vLLM behind one address, each with a model of its own, for a
day of fifteen minutes with a night: `make fleet-demo`.

First, one replica of each engine is measured for the plan. Then each server gets requests in its
own hours. The controller starts replicas as they are needed, and scales servers to 0 that get no
requests. At the end the demo judges service levels, lost requests, and the cost compared with
running the peak's replicas all day. Let nothing else run meanwhile.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.demo.cluster.processes import DemoFailed
from lab.demo.cluster.show import verdict_text
from lab.demo.fleet.members import TEMPORARY, members
from lab.demo.fleet.picture import draw
from lab.demo.fleet.play import play
from lab.demo.fleet.speeds import with_speed
from lab.demo.fleet.verdict import verdict
from lab.kit.servers import exit_on_sigterm

FAULTS_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", type=float, default=900.0, help="seconds")
    parser.add_argument("--picture", type=Path, help="draw a chart of the run into this SVG")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    exit_on_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="hearth-demo-"))
    print(f"Logs are in {folder}.", flush=True)
    try:
        fleet = []
        for each in members(folder):
            fleet.append(with_speed(each, folder / "measured"))
            print(f"{each.title}: at most {fleet[-1].peak_per_s:.1f} requests/s", flush=True)
        day = play(fleet, folder, options.day, lambda line: print(line, flush=True))
    except DemoFailed as error:
        sys.exit(f"The demo cannot go on: {error}")
    finally:
        shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
    findings = verdict(day)
    print(f"\n{verdict_text(findings)}")
    lost = [each for outcomes in day.outcomes.values() for each in outcomes if each.fault]
    for one in lost[:FAULTS_SHOWN]:
        print(f"     a request of {one.began_s:.1f} s: {one.fault}")
    if options.picture is not None:
        draw(day, options.picture)
        print(f"The picture is {options.picture}.")
    return 0 if all(each.is_kept for each in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
