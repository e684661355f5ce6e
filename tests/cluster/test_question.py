"""The optimizer's question of a plan."""

from typing import Any

import pytest

from cluster.controller.demand import OfferedLoad
from cluster.controller.question import Standing, question
from tests.cluster.fleet import system, system_json

OURS = {"priceSolver": True, "saturationPolicy": "PriorityRoundRobin"}


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ({}, OURS),
        (None, OURS),
        ({"minGainPercent": 5}, OURS | {"minGainPercent": 5}),
        ({"PRICESOLVER": False}, OURS | {"priceSolver": False}),
        ({"saturationPolicy": "None"}, OURS | {"saturationPolicy": "None"}),
    ],
)
def test_flags_that_a_document_does_not_name_are_ours(
    named: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    document = system_json()
    document["system"]["optimizerData"]["optimizer"] = named
    body = question(system(document), Standing({}, {"s": OfferedLoad(60, 10, 10)}, {}))
    assert body["optimizerData"]["optimizer"] == asked
