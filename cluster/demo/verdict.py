"""What a run has shown, in numbers, and which of them are as promised. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.demo.load import Asked
from cluster.demo.story import Story
from cluster.demo.watch import Look, Row, attainment

WITHIN_PERIODS = 2.0
LEAST_ATTAINED = 0.95
WHOLE_WITHIN_S = 30.0
MIN_REPLICAS = 1


@dataclass(frozen=True, slots=True)
class Run:
    """`killed_s`: when a node was; `strays`: failed requests that were on no killed node."""

    story: Story
    asked: Sequence[Asked]
    looks: Sequence[Look]
    rows: Sequence[Row]
    killed_s: float | None = None
    strays: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    text: str
    is_kept: bool


def verdict(run: Run) -> list[Finding]:
    found = [_followed(run), _attained(run), _lost(run), _changes(run), _back(run)]
    return found if run.killed_s is None else [*found, _whole_again(run)]


def failed(run: Run) -> list[Asked]:
    return [each for each in run.asked if each.fault]


def periods_to_follow(run: Run) -> float | None:
    """From the rise until all replicas of the first larger plan were ready."""
    story = run.story
    before = max((look.desired for look in run.looks if look.at_s < story.rise_s), default=0)
    busy = [look for look in run.looks if story.rise_s <= look.at_s < story.fall_s]
    wanted = next((look.desired for look in busy if look.desired > before), None)
    if wanted is None:
        return None
    ready_s = next((look.at_s for look in busy if look.ready >= wanted), None)
    return None if ready_s is None else (ready_s - story.rise_s) / story.period_s


def most_changes(run: Run) -> int:
    """Within one stabilisation window."""
    changed_s = [row.at_s for row in run.rows if row.has_changed]
    # A look comes some time after its cycle.
    window_s = run.story.stabilization_s - run.story.period_s / 2
    return max((sum(0 <= at_s - each < window_s for at_s in changed_s) for each in changed_s),
               default=0)  # fmt: skip


def _followed(run: Run) -> Finding:
    periods = periods_to_follow(run)
    text = "never" if periods is None else f"after {periods:.1f} periods"
    kept = periods is not None and periods <= WITHIN_PERIODS
    return Finding(f"replicas followed the doubling {text} (at most {WITHIN_PERIODS:g})", kept)


def _attained(run: Run) -> Finding:
    part, story = attainment(run.asked, run.story) or 0.0, run.story
    text = (
        f"{part:.1%} of {len(run.asked)} requests within {story.slo_ttft_ms:g} ms to the first "
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
    """Ready as planned, after a look that saw fewer."""
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
