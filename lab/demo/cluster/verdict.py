"""Computes the results of a run, and which of them meet their targets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lab.demo.cluster.load import RequestOutcome
from lab.demo.cluster.story import Story
from lab.demo.cluster.watch import Look, Row, attainment

WITHIN_PERIODS = 2.0
LEAST_ATTAINED = 0.95
WHOLE_WITHIN_S = 30.0
MIN_REPLICAS = 1
LARGEST_ERROR, WITHIN_CYCLES = 0.15, 10
LEAST_CYCLES = 5  # fewest cycles for a mean error


@dataclass(frozen=True, slots=True)
class Run:
    """`killed_s` is when a node was killed; `strays` counts failed requests on other nodes."""

    story: Story
    outcomes: Sequence[RequestOutcome]
    looks: Sequence[Look]
    rows: Sequence[Row]
    killed_s: float | None = None
    strays: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    text: str
    is_kept: bool


def verdict(run: Run) -> list[Finding]:
    if run.story.shares is not None:
        return [_predicted(run), _followed_slow(run), _attained(run), _lost(run), _changes(run)]
    found = [_followed(run), _attained(run), _lost(run), _changes(run), _back(run)]
    return found if run.killed_s is None else [*found, _whole_again(run)]


def failed(run: Run) -> list[RequestOutcome]:
    return [each for each in run.outcomes if each.fault]


def periods_to_follow(run: Run) -> float | None:
    """Returns the periods from the rise until the first larger plan was ready; None if never."""
    story = run.story
    before = next((look.desired for look in reversed(run.looks) if look.at_s < story.rise_s), 0)
    busy = [look for look in run.looks if story.rise_s <= look.at_s < story.fall_s]
    wanted = next((look.desired for look in busy if look.desired > before), None)
    if wanted is None:
        return None
    ready_s = next((look.at_s for look in busy if look.ready >= wanted), None)
    return None if ready_s is None else (ready_s - story.rise_s) / story.period_s


def cycles_to_predict(run: Run) -> tuple[int, tuple[float, float]] | None:
    """Returns the number of cycles after the rise from which on predictions are near enough on
    average, and their mean relative errors of TTFT and ITL; None if they never are."""
    later = [row for row in run.rows if row.at_s > run.story.rise_s]
    for number in range(len(later)):
        errors = [each for row in later[number:] if (each := _errors(row)) is not None]
        if len(errors) < LEAST_CYCLES:
            return None
        of_ttft, of_itl = (fmean(each) for each in zip(*errors, strict=True))
        if max(of_ttft, of_itl) <= LARGEST_ERROR:
            return number, (of_ttft, of_itl)
    return None


def _errors(row: Row) -> tuple[float, float] | None:
    """Returns the relative errors of TTFT and ITL; None without predictions."""
    if not (row.ttft_ms and row.itl_ms and row.predicted_ttft_ms and row.predicted_itl_ms):
        return None
    return (
        abs(row.predicted_ttft_ms / row.ttft_ms - 1),
        abs(row.predicted_itl_ms / row.itl_ms - 1),
    )


def most_changes(run: Run) -> int:
    """Returns the most changes of the plan within one stabilisation window."""
    changed_s = [row.at_s for row in run.rows if row.has_changed]
    # Rows come some time after their cycles.
    window_s = run.story.stabilization_s - run.story.period_s / 2
    return max((sum(0 <= at_s - each < window_s for at_s in changed_s) for each in changed_s),
               default=0)  # fmt: skip


def _followed(run: Run) -> Finding:
    periods = periods_to_follow(run)
    text = "never" if periods is None else f"after {periods:.1f} periods"
    kept = periods is not None and periods <= WITHIN_PERIODS
    return Finding(f"replicas followed the doubling {text} (at most {WITHIN_PERIODS:g})", kept)


def _predicted(run: Run) -> Finding:
    found = cycles_to_predict(run)
    bounds = f"(at most {LARGEST_ERROR:.0%}, after at most {WITHIN_CYCLES} cycles)"
    if found is None:
        return Finding(f"predictions never came close again {bounds}", False)
    number, (of_ttft, of_itl) = found
    text = (
        f"from {number} cycles after the slow-down on, predictions were off by {of_ttft:.0%} "
        f"(TTFT) and {of_itl:.0%} (ITL) on average {bounds}"
    )
    return Finding(text, number <= WITHIN_CYCLES)


def _followed_slow(run: Run) -> Finding:
    periods = periods_to_follow(run)
    text = "never" if periods is None else f"after {periods:.1f} periods"
    return Finding(f"replicas followed the slow-down {text}", periods is not None)


def _attained(run: Run) -> Finding:
    part, story = attainment(run.outcomes, run.story) or 0.0, run.story
    text = (
        f"{part:.1%} of {len(run.outcomes)} requests within {story.slo_ttft_ms:g} ms to the first "
        f"token and {story.slo_itl_ms:g} ms between tokens (at least {LEAST_ATTAINED:.0%})"
    )
    return Finding(text, part >= LEAST_ATTAINED)


def _lost(run: Run) -> Finding:
    lost = failed(run)
    if run.killed_s is None:
        return Finding(f"{len(lost)} requests lost (0)", not lost)
    later = [each for each in lost if each.began_s > run.killed_s]
    text = f"{len(lost)} streams broken by the node's death, {run.strays} of them elsewhere (0), "
    return Finding(f"{text}{len(later)} requests lost after it (0)", not later and not run.strays)


def _changes(run: Run) -> Finding:
    most = most_changes(run)
    total = sum(row.has_changed for row in run.rows)
    return Finding(
        f"{total} changes of the plan, {most} at most in {run.story.stabilization_s:g} s (1)",
        most <= 1,
    )


def _back(run: Run) -> Finding:
    last = run.looks[-1]
    kept = last.desired == last.ready == MIN_REPLICAS
    return Finding(
        f"{last.ready} replicas ready in the end, {last.desired} wanted ({MIN_REPLICAS})", kept
    )


def _whole_again(run: Run) -> Finding:
    """Finds when all planned replicas were ready again after some were missing."""
    after = [look for look in run.looks if run.killed_s is not None and look.at_s > run.killed_s]
    hole = next((n for n, look in enumerate(after) if look.ready < look.desired), None)
    if hole is None or run.killed_s is None:
        return Finding("no replica was missed after the node's death", False)
    whole = next((look.at_s for look in after[hole:] if look.ready >= look.desired), None)
    if whole is None:
        return Finding("never whole again after the node's death", False)
    took_s = whole - run.killed_s
    return Finding(
        f"whole again {took_s:.1f} s after the node's death (at most {WHOLE_WITHIN_S:g})",
        took_s <= WHOLE_WITHIN_S,
    )
