"""Cuts a step into parts that follow each other round the ring, so that all ranks work at once.

Exact because the runner is batch invariant: a token's numbers do not depend on the part it is in,
and those of a row that come later find the earlier ones in the cache. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from inference_api.pipeline.messages import PART_TOKENS
from inference_api.runner import MAX_TREE_TOKENS, RowStep


def num_parts(num_tokens: int, at_all_rows: int, max_rows: int) -> int:
    """How many parts a step is cut into, when `at_all_rows` are best for one of `max_rows` tokens.

    A rank takes a + c n for n tokens, as it reads its weights for every part. P ranks take (P - 1 +
    m)(a + c n / m) for m parts, which is least where m is as the square root of n.
    """
    best = round(at_all_rows * math.sqrt(num_tokens / max_rows))
    return min(num_tokens, max(1, best))


def cut(rows: Sequence[RowStep], num_parts: int) -> list[list[RowStep]]:
    """Parts of about as many tokens each, in their order, and of at most PART_TOKENS. Chains are
    cut anywhere, trees never, of which there is therefore room for one in every part."""
    num_tokens = sum(len(each.token_ids) for each in rows)
    size = min(-(-num_tokens // num_parts), PART_TOKENS - MAX_TREE_TOKENS)
    parts: list[list[RowStep]] = [[]]
    room = size
    for each in rows:
        rest: RowStep | None = each
        while rest is not None:
            if room <= 0:
                parts.append([])
                room = size
            now, rest = _divided(rest, room)
            parts[-1].append(now)
            room -= len(now.token_ids)
    return parts


def _divided(row: RowStep, num_tokens: int) -> tuple[RowStep, RowStep | None]:
    if row.parents is not None or len(row.token_ids) <= num_tokens:
        return row, None
    num_drawn = max(0, num_tokens - row.num_undrawn)
    return (
        replace(row, token_ids=row.token_ids[:num_tokens], draws=row.draws[:num_drawn]),
        replace(
            row,
            start=row.start + num_tokens,
            token_ids=row.token_ids[num_tokens:],
            draws=row.draws[num_drawn:],
        ),
    )
