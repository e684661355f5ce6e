"""Cuts a step into parts that follow each other round the ring, so that all ranks work at once.

The results are exact because the runner is batch invariant: a token's numbers do not depend on its
part, and a row's later tokens find its earlier ones in the cache. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from inference_api.pipeline.messages import PART_TOKENS
from inference_api.runner import MAX_TREE_TOKENS, RowStep


def num_parts(num_tokens: int, at_all_rows: int, max_rows: int) -> int:
    """Returns the number of parts of a step, if `at_all_rows` parts are best for `max_rows` tokens.

    A rank takes a + c n seconds for n tokens, because it reads its weights for every part. P ranks
    take (P - 1 + m)(a + c n / m) for m parts; the best m is proportional to the square root of n.
    """
    best = round(at_all_rows * math.sqrt(num_tokens / max_rows))
    return min(num_tokens, max(1, best))


def cut(rows: Sequence[RowStep], num_parts: int) -> list[list[RowStep]]:
    """Returns the parts in order, of about equally many tokens and at most PART_TOKENS each. Chains
    are cut anywhere; trees are never cut, and one always fits into a part."""
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
