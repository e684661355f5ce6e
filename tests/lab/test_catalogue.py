"""The fit of the catalogue's calibration to published measurements."""

import math
import re
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.catalogue.__main__ import main
from lab.catalogue.fit import MIN_POINTS, calibrate
from lab.catalogue.observations import Observation, Point, published
from lab.kit.servers import ROOT
from optimizer.catalogue.facts import Precision, shipped_facts
from optimizer.catalogue.roofline import PARTS, Machine
from optimizer.errors import InvalidRequest
from optimizer.inferno_json import read

FACTS = shipped_facts()


def test_calibration_finds_the_efficiencies_that_made_the_measurements() -> None:
    """And so they do without any one pair, but for the only one of its arithmetic."""
    truth = np.array([0.06, 0.03, 1.3, 1.5, 1.6, 2.0, 3.0, 8.0])
    made = [made_observation(seen, truth) for seen in published()]
    found = calibrate(FACTS, made)
    np.testing.assert_allclose(found.efficiency, truth, rtol=1e-6)
    errors = {each.pair: each.error for each in found.left_out}
    assert errors.pop(("llama-3.3-70b", "b200")) > 0.01
    assert max(errors.values()) < 1e-6
    fit = found.fit_of(("qwen3-8b", "h100", Precision.FP8))
    assert fit is not None
    assert [fit.steps, fit.prompts] == pytest.approx([1, 1])


def made_observation(seen: Observation, efficiency: Any) -> Observation:
    """The same loads, in the times that these efficiencies take, as the mean between tokens."""
    made = Machine(
        FACTS.models[seen.model], FACTS.accelerators[seen.accelerator], seen.cards,
        seen.precision, seen.cache_bits,
    )  # fmt: skip
    points = []
    for point in seen.points:
        rows = point.rows or 64
        beside = (rows - 1) * point.in_tokens / point.out_tokens
        parts = made.step(rows, point.in_tokens + point.out_tokens / 2)
        parts = parts + beside * made.prompt_token()
        given = {"itl_ms": float(parts @ efficiency) + made.link_ms(rows + beside)}
        if point.ttft_ms is not None:
            parts = made.step(1, point.in_tokens + point.out_tokens / 2)
            parts[PARTS.index("request")] = 1
            parts = parts + point.in_tokens * made.prompt_token()
            given = {"ttft_ms": float(parts @ efficiency) + made.link_ms(1 + point.in_tokens)}
        shape = {"rows": rows, "in_tokens": point.in_tokens, "out_tokens": point.out_tokens}
        points.append(Point.model_validate(shape | given))
    return seen.model_copy(update={"points": points})


def test_the_error_of_estimates_is_that_of_pairs_left_out() -> None:
    calibration = calibrate(FACTS, published())
    dense = [
        each.error
        for each in calibration.left_out
        if each.num_points >= MIN_POINTS and not FACTS.models[each.model].experts
    ]
    assert calibration.dense_error == pytest.approx(math.sqrt(np.mean(np.square(dense))))


def test_a_point_is_one_measurement() -> None:
    with pytest.raises(InvalidRequest, match="give one of"):
        read(Point, {"rows": 1, "in": 1, "out": 1})
    with pytest.raises(InvalidRequest, match="give one of"):
        read(Point, {"rows": 1, "in": 1, "out": 1, "itlMs": 1.0, "ttftMs": 1.0})


def test_the_documented_errors_are_those_of_the_fit() -> None:
    documented = re.search(
        r"```text calibration\n(.*?)```", (ROOT / "docs/plan.md").read_text(), re.DOTALL
    )
    assert documented is not None
    assert documented[1] in CliRunner().invoke(main).output
