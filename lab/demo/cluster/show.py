"""Formats the demo's table and verdict as text."""

from collections.abc import Sequence

from lab.demo.cluster.verdict import Finding
from lab.demo.cluster.watch import Row

HEAD = (
    "    at  offered  replicas     TTFT ms       ITL ms    within\n"
    "     s       /s  plan/now  seen   said   seen   said  levels  what and why"
)


def line_of(row: Row) -> str:
    latencies = (row.ttft_ms, row.predicted_ttft_ms, row.itl_ms, row.predicted_itl_ms)
    ttft, said_ttft, itl, said_itl = ("-" if ms is None else f"{ms:.0f}" for ms in latencies)
    attained = "-" if row.attained is None else f"{row.attained:.0%}"
    mark = "*" if row.has_changed else " "
    return (
        f"{row.at_s:6.0f} {row.offered_per_s:8.1f}  {row.desired:4d}/{row.ready:<3d}"
        f"{ttft:>6s} {said_ttft:>6s} {itl:>6s} {said_itl:>6s} {attained:>7s} {mark}{row.why}"
    )


def verdict_text(findings: Sequence[Finding]) -> str:
    return "\n".join(f"{'ok  ' if each.is_kept else 'MISS'} {each.text}" for each in findings)
