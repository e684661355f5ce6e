"""Formats the table's figures as Markdown."""

from collections.abc import Iterator, Sequence

from lab.benches.table.figures import PUBLISHED, Bound, Claim, Row

COLUMNS = (
    "| users | server | tokens/s (least to most) | ÷ plain (least to most) "
    "| a user's, after the first | ÷ plain | TTFT p50 ms "
    "| acceptance | tokens/step | memory MiB | same text |\n" + "|---" * 11 + "|"
)
FORMS = ("plain", "quantised", "Medusa", "both")


def row_text(row: Row) -> str:
    acceptance = "" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
    same = "yes" if row.has_same_text else "NO"
    is_plain = row.label == row.plain
    return (
        f"| {row.users} | {row.label} | {row.tokens_per_s:.1f} "
        f"| {'' if is_plain else f'{row.ratio:.2f}'} | {row.decode_tokens_per_s.median:.1f} "
        f"| {'' if is_plain else f'{row.decode_ratio:.2f}'} | {row.ttft_ms:.0f} "
        f"| {acceptance} | {row.tokens_per_step:.2f} | {row.memory_mib:.0f} "
        f"| {'' if is_plain else same} |"
    )


def claim_text(claim: Claim) -> str:
    head = (
        f"| tokens/s after the first, 1 user | {' | '.join(FORMS)} |\n{'|---' * (len(FORMS) + 1)}|"
    )
    lines = [head, _claim_line("published, Falcon-40B", PUBLISHED)]
    lines.append(_claim_line("here", claim.tokens_per_s))
    kept = f"both ÷ (quantised x Medusa): {claim.kept:.2f}"
    return "\n".join([*lines, "", kept])


def _claim_line(name: str, rates: Sequence[float]) -> str:
    gains = [f"{rate:.1f} (x{rate / rates[0]:.2f})" for rate in rates[1:]]
    return f"| {name} | {rates[0]:.1f} | {' | '.join(gains)} |"


def bounds_text(bounds: Sequence[Bound]) -> str:
    sizes = list(bounds[0].speedups)
    head = f"| users | {' | '.join(sizes)} | bound | auto | auto ÷ bound | auto ÷ off, tokens/s |"
    return "\n".join([head, "|---" * (len(sizes) + 5) + "|", *map(_bound_line, bounds)])


def _bound_line(bound: Bound) -> str:
    speedups = " | ".join(f"{value:.2f}" for value in bound.speedups.values())
    return (
        f"| {bound.users} | {speedups} | {bound.best:.2f} | {bound.reached:.2f} "
        f"| {bound.share:.2f} | {bound.reached_tokens_per_s:.2f} |"
    )


def beside_peers(rows: Sequence[Row], ours: str, peers: str) -> Iterator[str]:
    """Yields, for each load, `ours` over the fastest row whose label begins with `peers`."""
    for users in sorted({row.users for row in rows}):
        here = [row for row in rows if row.users == users]
        own = [row for row in here if row.label == ours]
        others = [row for row in here if row.label.startswith(peers)]
        if own and others:
            best = max(others, key=lambda row: row.tokens_per_s.median)
            ratio = own[0].tokens_per_s.median / best.tokens_per_s.median
            yield f"{users} users: {ours} ÷ {best.label} = {ratio:.2f}"
