"""Service curves for tests."""

from typing import Any

from optimizer.model.step_curve import NO_LIMIT, Points, StepCurve

# About as the embedded model, with a kink: up to four rows cost as much as one.
MEASURED: dict[str, Any] = {
    "decodeMs": [
        {"rows": 1, "ms": 0.8, "standardError": 0.02},
        {"rows": 4, "ms": 1.0, "standardError": 0.02},
        {"rows": 8, "ms": 2.2, "standardError": 0.05},
        {"rows": 32, "ms": 8.6, "standardError": 0.1},
    ],
    "promptTokenMs": 0.02,
}


def points(*pairs: tuple[float, float]) -> Points:
    rows, ms = zip(*pairs, strict=True)
    return Points(rows, ms, (0.0,) * len(rows))


def curve(
    *decode: tuple[float, float],
    token_ms: float = 0.0,
    chunk: float = NO_LIMIT,
    budget: float = NO_LIMIT,
) -> StepCurve:
    return StepCurve(points(*decode), points((1.0, token_ms)), chunk, budget)
