"""How many accelerators: the answer, its bounds and its reasons."""

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from optimizer.app import create_app
from optimizer.candidates.replicas import SizingCache
from optimizer.catalogue.facts import shipped_facts
from optimizer.errors import InvalidRequest
from optimizer.inferno_json import read
from optimizer.questions import how_many as questions
from optimizer.questions.how_many import HowMany, HowManyQuery, how_many
from optimizer.settings import Settings

CACHE = SizingCache()  # one for all: the same cards are sized over and over
FAST = {"alpha": 5.0, "beta": 0.01}
TWO_CARDS = ["h100", "l40s"]


def answer_to(**fields: Any) -> HowMany:
    body = {"model": "qwen3-8b", "arrivalRate": 600, "slo-ttft": 500, "slo-itl": 40,
            "accelerators": TWO_CARDS, **fields}  # fmt: skip
    return how_many(read(HowManyQuery, body), CACHE)


@pytest.fixture(scope="module")
def answer() -> HowMany:
    return answer_to()


def test_choices_meet_the_levels_cheapest_first(answer: HowMany) -> None:
    assert {choice["accelerator"] for choice in answer["choices"]} == set(TWO_CARDS)
    costs = [choice["cost"] for choice in answer["choices"]]
    assert costs == sorted(costs)
    for choice in answer["choices"]:
        assert choice["ttftAverage"] <= 500
        assert choice["itlAverage"] <= 40
        assert choice["cards"] == choice["numReplicas"] * choice["cardsPerReplica"]
        assert choice["cost"] == pytest.approx(choice["costPerCard"] * choice["cards"])
        # All the load is within what the replicas take, and one fewer would not do.
        assert choice["numReplicas"] * choice["maxRPM"] >= 600
        assert (choice["numReplicas"] - 1) * choice["maxRPM"] < 600
        memory = choice["memory"]
        held = memory["weights"] + choice["maxBatch"] * memory["ofRequest"]
        assert held <= memory["usable"]


def test_every_figure_has_bounds_around_it(answer: HowMany) -> None:
    for choice in answer["choices"]:
        for value, bounds in (
            (choice["numReplicas"], choice["replicasRange"]),
            (choice["cost"], choice["costRange"]),
            (choice["ttftAverage"], choice["ttftRange"]),
            (choice["itlAverage"], choice["itlRange"]),
        ):
            assert bounds["low"] <= value * (1 + 1e-6)
            assert bounds["high"] is None or bounds["high"] >= value * (1 - 1e-6)
        assert choice["itlRange"]["low"] < choice["itlAverage"]


def test_fitted_speeds_are_surer_than_estimates(answer: HowMany) -> None:
    speeds = {choice["accelerator"]: choice["speed"] for choice in answer["choices"]}
    fitted, estimated = speeds["h100"], speeds["l40s"]
    assert (fitted["kind"], estimated["kind"]) == ("fitted", "estimated")
    assert fitted["error"] < estimated["error"]
    assert fitted["sources"]
    assert not estimated["sources"]
    assert any("Estimated speeds" in note for note in answer["notes"])


def test_what_would_change_it_holds(answer: HowMany) -> None:
    changes = {change["what"]: change for change in answer["changes"]}
    assert {"binds", "replica", "price", "rate", "slo-itl", "slo-ttft", "precision"} <= set(changes)
    doubled = answer_to(arrivalRate=1200)["choices"][0]
    assert changes["rate"]["cards"] == doubled["cards"]
    assert changes["rate"]["cost"] == pytest.approx(doubled["cost"])
    tighter = answer_to(**{"slo-itl": 20})["choices"][0]
    assert changes["slo-itl"]["cost"] == pytest.approx(tighter["cost"])
    lighter = answer_to(precision="fp8")["choices"][0]
    assert changes["precision"]["cost"] == pytest.approx(lighter["cost"])


def test_at_the_price_named_the_next_accelerator_wins(answer: HowMany) -> None:
    first, second = answer["choices"]
    price = first["cost"] / second["cards"]
    told = next(change for change in answer["changes"] if change["what"] == "price")
    assert f"below ${price / 100:.3g} " in told["text"]
    cheaper = answer_to(prices={second["accelerator"]: 0.99 * price})
    assert cheaper["choices"][0]["accelerator"] == second["accelerator"]


def test_a_measurement_replaces_the_catalogue() -> None:
    prefill = {"gamma": 1, "delta": 0.001}
    perf = {"name": "Qwen/Qwen3-8B", "acc": "h100", "maxBatchSize": 64, "prefillParms": prefill,
            "decodeParms": FAST | {"alphaError": 0.1}}  # fmt: skip
    measured = answer_to(measured=[perf], accelerators=["h100"])["choices"][0]
    assert measured["speed"]["kind"] == "measured"
    assert measured["speed"]["error"] == pytest.approx(0.02)
    assert measured["maxBatch"] == 64
    assert measured["itlAverage"] < 6


def test_a_measurement_holds_for_its_own_precision_alone() -> None:
    perf = {"name": "qwen3-8b", "acc": "h100", "maxBatchSize": 1, "decodeParms": {"alpha": 1000.0}}
    changes = answer_to(measured=[perf], accelerators=["h100"], **{"slo-itl": 2000, "slo-ttft": 0})
    slow = changes["choices"][0]["cost"]
    light = next(change for change in changes["changes"] if change["what"] == "precision")
    assert light["cost"] is not None
    assert light["cost"] < slow / 100


def test_levels_that_nothing_meets_are_answered_with_the_nearest() -> None:
    unmet = answer_to(**{"slo-itl": 0.1})
    assert unmet["choices"] == []
    assert unmet["changes"] == []
    assert {each["accelerator"] for each in unmet["notChosen"]} == set(TWO_CARDS)
    nearest = unmet["nearest"]
    assert nearest is not None
    met = answer_to(arrivalRate=1, **{"slo-itl": 1.1 * nearest["itlAverage"]})
    assert met["choices"]


def test_too_few_cards_too_little_memory_and_no_price_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = answer_to(arrivalRate=6000, accelerators=["l40s"], maxCards=1)
    assert "it needs" in few["notChosen"][0]["reason"]
    small = answer_to(model="llama-3.3-70b", accelerators=["t4"], maxCards=4)
    assert "do not fit" in small["notChosen"][0]["reason"]
    facts = shipped_facts()
    card = facts.accelerators["a10g"].model_copy(update={"price": None})
    unpriced_facts = replace(facts, accelerators={**facts.accelerators, "a10g": card})
    monkeypatch.setattr(questions, "shipped_facts", lambda: unpriced_facts)
    unpriced = answer_to(accelerators=["a10g"])
    assert "no price" in unpriced["notChosen"][0]["reason"]
    assert answer_to(accelerators=["a10g"], prices={"A10G": 75})["choices"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": "nothing like it"}, "model"),
        ({"accelerators": ["abacus"]}, "accelerators"),
        ({"prices": {"abacus": 1}}, "prices"),
        ({"prices": {"h100": -1}}, "prices"),
        ({"arrivalRate": 0}, "arrivalRate"),
        ({"arrivalRate": float("nan")}, "arrivalRate"),
        ({"avgInTokens": 41_000}, "avgInTokens"),
        ({"precision": "fp1"}, "precision: .* 'bf16', 'fp8', 'int4', 'fp4' or 'mxfp4'"),
        ({"precision": "mxfp4"}, "precision"),
        ({"prices": {"h100": 1e8}}, "prices"),
        ({"measured": [{"name": "hearth-tiny", "acc": "h100"}]}, r"measured\[0\].name"),
        ({"measured": [{"name": "qwen3-8b", "acc": "h100", "accCount": 3}]}, "accCount"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest, match=path):
        answer_to(**fields)


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    return create_app(Settings()).test_client()


def test_the_route_answers_as_the_question(client: FlaskClient, answer: HowMany) -> None:
    body = {"model": "qwen3-8b", "arrivalRate": 600, "slo-ttft": 500, "slo-itl": 40,
            "accelerators": TWO_CARDS}  # fmt: skip
    told = client.post("/howmany", json=body)
    assert told.status_code == 200
    assert told.get_json() == answer
    refused = client.post("/howmany", json=body | {"model": "qwen"})
    assert refused.status_code == 400
    assert "nearest: qwen3-" in refused.get_json()["message"]


def test_the_catalogue_is_shown_with_its_sources_and_errors(client: FlaskClient) -> None:
    shown = client.get("/catalogue").get_json()
    assert {each["name"] for each in shown["models"]} >= {"llama-3.1-8b", "gpt-oss-120b"}
    assert all(each["source"] for each in shown["accelerators"])
    calibration = shown["calibration"]
    assert 0 < calibration["denseError"] < calibration["expertsError"]
    assert {each["model"] for each in calibration["leftOut"]} >= {"llama-3.3-70b", "gpt-oss-20b"}
    assert all(each["sources"] for each in calibration["fitted"])


@pytest.mark.parametrize(
    "fields",
    [
        {"arrivalRate": 1e9},
        {"arrivalRate": 1e-300},
        {"prices": {"h100": 0}},
        {"slo-itl": 1e12, "slo-ttft": 1e12},
        {"slo-itl": 1e-12},
        {"slo-itl": 0, "slo-ttft": 0, "avgInTokens": 0, "avgOutTokens": 40_960},
        {"measured": [{"name": "qwen3-8b", "acc": "h100"}]},  # all times are 0
        {"measured": [{"name": "qwen3-8b", "acc": "h100", "maxBatchSize": 2**31 - 1,
                       "decodeParms": {"alpha": 1e-9, "beta": 1e9}}]},
        {"measured": [{"name": "qwen3-8b", "acc": "h100", "maxBatchSize": 65_536,
                       "serviceCurve": {"decodeMs": [{"rows": 1, "ms": 1}, {"rows": 256, "ms": 4}],
                                        "promptTokenMs": [{"rows": 1, "ms": 0.01},
                                                          {"rows": 256, "ms": 0.04}]}}]},
    ],
)  # fmt: skip
def test_whatever_is_asked_is_answered_in_finite_numbers(
    client: FlaskClient, fields: dict[str, Any]
) -> None:
    body = {"model": "qwen3-8b", "arrivalRate": 600, "slo-ttft": 500, "slo-itl": 40,
            "accelerators": ["h100"]}  # fmt: skip
    told = client.post("/howmany", json=body | fields)
    assert told.status_code == 200
    assert "choices" in told.get_json()
