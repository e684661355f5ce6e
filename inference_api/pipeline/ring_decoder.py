"""The decoder of rank 0: runs its own layers, the other ranks' and the head. Decode thread only."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np

from inference_api.engine.cpu.decoder import KernelDecoder, Outputs
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.local_runner import LocalRunner
from inference_api.kernels.interface import Floats
from inference_api.pipeline.messages import PART_TOKENS, BadMessage, Kind, Message, step_numbers
from inference_api.pipeline.ring import Ring
from inference_api.runner import MAX_TREE_TOKENS, Hidden, RowStep


class Rounds:
    """Sends the parts of a step round the ring one after another. They return in that order."""

    def __init__(self, ring: Ring, max_rows: int, hidden_size: int) -> None:
        self.parts_at_all_rows = ring.num_ranks
        """The best number of parts for a step of all rows: see `num_parts`."""
        self._ring = ring
        self._max_rows = max_rows
        self._no_states = np.empty((0, hidden_size), np.float32)

    def after(
        self,
        layers: Callable[[Sequence[RowStep], bool], Floats],
        rows: Sequence[RowStep],
        prompts: Sequence[RowStep] = (),
    ) -> Iterator[tuple[Sequence[RowStep], Hidden]]:
        """See `OtherLayers`. Raises RingBroken, BadMessage."""
        num_tokens = sum(len(each.token_ids) for each in rows)
        parts: list[Sequence[RowStep]] = [[each] for each in prompts]
        if rows:
            parts += cut(rows, num_parts(num_tokens, self.parts_at_all_rows, self._max_rows))
        for index, part in enumerate(parts):
            kind = Kind.PROMPT if index < len(prompts) else Kind.STEP
            residual = layers(part, kind is Kind.PROMPT)
            self._ring.send(Message(kind, step_numbers(part), residual))
        for part in parts:
            yield part, self._receive(part)

    def _receive(self, part: Sequence[RowStep]) -> Hidden:
        """Returns the states after all layers, for the part's tokens that draw or are wanted."""
        count = sum(len(each.returned) for each in part)
        message = self._ring.receive()
        states = self._no_states if message.states is None else message.states
        if message.kind is not Kind.STEP or len(states) != count:
            raise BadMessage(f"{len(states)} tokens came back for {count}")
        return states


def decode_by(runner: LocalRunner, rounds: Rounds) -> None:
    """Have the loaded runner of the first layers also use the other ranks' layers."""
    if isinstance(runner, KernelRunner):
        runner.forward = partial(_forward, runner.decoder, rounds)
        return
    from inference_api.engine.cuda.part_decoder import PartDecoder
    from inference_api.engine.cuda.runner import CudaRunner

    assert isinstance(runner, CudaRunner)
    assert isinstance(runner.decoder, PartDecoder)
    runner.decoder.others = rounds


def _forward(local: KernelDecoder, rounds: Rounds, rows: Sequence[RowStep]) -> Outputs:
    """Run a step by the kernels for the own layers, and the ring for the others. The head handles a
    part before the next comes. Raises RingBroken."""
    logits: list[Floats] = []
    hidden: list[Hidden | None] = []  # one for each row, or for each piece of one
    for part, states in rounds.after(lambda part, _: local.layers(part), rows):
        returned = [replace(row, token_ids=row.returned, parents=None) for row in part]
        outputs = local.head(returned, states)
        logits.append(outputs.logits.copy())  # the next part overwrites this memory
        hidden += outputs.hidden
    return Outputs(np.concatenate(logits), _states_by_row(rows, hidden))


def _states_by_row(
    rows: Sequence[RowStep], of_pieces: Sequence[Hidden | None]
) -> Sequence[Hidden | None]:
    """Returns the states of each row that wants them; they come in consecutive pieces of rows."""
    wanted = [each for each in of_pieces if each is not None]
    if not wanted:
        return [None] * len(rows)
    ends = accumulate(len(row.token_ids) for row in rows if row.wants_hidden)
    of_rows = iter(np.split(np.concatenate(wanted), [*ends]))
    return [next(of_rows) if row.wants_hidden else None for row in rows]


def num_parts(num_tokens: int, at_all_rows: int, max_rows: int) -> int:
    """Returns the number of parts of a step, if `at_all_rows` parts are best for `max_rows` tokens.

    A rank takes a + c n seconds for a part of n tokens, because it reads its weights for every
    part. P ranks take (P - 1 + m)(a + c n / m) seconds for n tokens in m parts, so the best m is
    proportional to the square root of n.
    """
    best = round(at_all_rows * math.sqrt(num_tokens / max_rows))
    return min(num_tokens, max(1, best))


def cut(rows: Sequence[RowStep], num_parts: int) -> list[list[RowStep]]:
    """Returns the parts of a step in order. Each has about equally many tokens, and at most
    PART_TOKENS. They follow each other round the ring, so that all ranks work at once. Chains may
    be cut anywhere. Trees are not cut; each of them fits into a part.

    The results are exact because the runner is batch invariant: a token's numbers do not depend on
    its part, and a row's later tokens find its earlier ones in the cache.
    """
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
