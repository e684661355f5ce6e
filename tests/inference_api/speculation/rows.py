"""Rows that decode, for draft sources to look at."""

from collections.abc import Sequence

from inference_api.core.rows import UserRow
from inference_api.request import GenerationParams, GenerationRequest, OutputQueue, SessionId
from tests.inference_api.core.row_tables import make_rows


def rows_of(*prompts: Sequence[int], max_tokens: int = 1000) -> list[UserRow]:
    table = make_rows(len(prompts))
    return [
        table.assign(
            GenerationRequest(
                OutputQueue(SessionId(str(n)), "m"),
                "m",
                tuple(prompt),
                GenerationParams(max_tokens),
            ),
            10_000,
            0.0,
        )
        for n, prompt in enumerate(prompts)
    ]
