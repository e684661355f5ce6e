"""Switching times: how long a bundle takes to bring another model into fast memory.

There are the times that the server reports, and an estimate from its times to first token by the
documented rule. Both are pure, for a run whose rows visit the models in the order of `rotation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from benchmarking.analysis.latency import succeeded
from benchmarking.records import RequestRecord, Run

SIGMAS = 3.0
# With almost no spread, any jitter of the clock would count as a switch.
MIN_SWITCH_S = 0.005
MIN_SWITCH_SHARE = 0.1  # share of the mean time to first token


def three_sigma_s(ttfts_s: Sequence[float | None]) -> float | None:
    """Returns how much longer the first request took than the others' mean, if that is a switch.

    `ttfts_s` are the server's times to first token of one row, in the order of sending. Returns
    None if one is missing, if there are no others, or if the excess is at most 3 sigmas of the
    others, 5 ms or a tenth of their mean. A single other has no sigma. The rule is sound only for
    one request at a time: several first requests would share the switch and hide it.
    """
    present_s = [ttft_s for ttft_s in ttfts_s if ttft_s is not None]
    if len(present_s) < len(ttfts_s) or len(present_s) < 2:
        return None
    first_s, *other_s = present_s
    mean_s = fmean(other_s)
    sigma_s = stdev(other_s) if len(other_s) > 1 else 0.0
    excess_s = first_s - mean_s
    floor_s = max(MIN_SWITCH_S, MIN_SWITCH_SHARE * mean_s, SIGMAS * sigma_s)
    return excess_s if excess_s > floor_s else None


def batch_of(group_size: int) -> int:
    """Returns the batch in which a group of this size ran: the next power of two."""
    return 1 << (group_size - 1).bit_length()


def rotation(models: Sequence[str], laps: int = 1) -> list[str]:
    """Returns an order of visits that goes from each model to each other one exactly `laps` times.

    Before that, each model is visited once as a warm-up. The order is an Eulerian circuit through
    the complete directed graph (Hierholzer, 1873).
    """
    remaining = {x: [y for y in reversed(models) if y != x] * laps for x in models}
    path, circuit = [models[0]], []
    while path:
        if remaining[path[-1]]:
            path.append(remaining[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return [*models, *reversed(circuit)] if len(models) > 1 else list(models)


@dataclass(slots=True)
class Switches:
    """Switching times from one model to another, in seconds; 0 if no switch was noticed."""

    by_server_s: list[float] = field(default_factory=list)
    by_estimate_s: list[float] = field(default_factory=list)


Matrix = dict[tuple[str, str], Switches]  # keys: (from model, to model)


def switching_matrix(run: Run) -> Matrix:
    """Returns the switching times of the rows of `run`, in the order in which they ran.

    The first visit to a model is its warm-up and does not count, nor does a row without an answer.
    The warm-up requests of later visits count, because the first of them waits for the switch.
    """
    matrix: Matrix = {}
    visited: set[str] = set()
    previous: str | None = None
    for number, row in enumerate(run.rows):
        model = row.load.model
        answered = succeeded(run.all_of(number))
        if previous is not None and model in visited and model != previous and answered:
            _note(matrix.setdefault((previous, model), Switches()), answered)
        visited.add(model)
        previous = model
    return matrix


def _note(switches: Switches, answered: Sequence[RequestRecord]) -> None:
    in_order = sorted(answered, key=lambda record: record.sent_s)
    if reported_s := [s for r in in_order if (s := r.server.switching_time_s) is not None]:
        switches.by_server_s.append(max(reported_s))
    ttfts_s = [record.server.ttft_s for record in in_order]
    if None not in ttfts_s and len(ttfts_s) > 1:
        switches.by_estimate_s.append(three_sigma_s(ttfts_s) or 0.0)
