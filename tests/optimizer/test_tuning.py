"""The filter that follows a server's speed, on observations of a replica whose speed is known."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from optimizer.app import create_app
from optimizer.model.latency import PhaseModel
from optimizer.model.queueing import Replica
from optimizer.model.tuning import GATE, MAX_REFUSALS, MAX_VARIANCE, Mean, SpeedTuner
from optimizer.settings import Settings

ALPHA_MS, BETA_MS, GAMMA_MS, DELTA_MS = 5.0, 0.5, 8.0, 0.02
IN_TOKENS, OUT_TOKENS = 128.0, 64.0
PERIOD_S = 30.0


def replica(decode: float, prefill: float) -> Replica:
    row = (ALPHA_MS * decode, BETA_MS * decode, GAMMA_MS * prefill, DELTA_MS * prefill)
    model = PhaseModel.from_rows([(*row, IN_TOKENS, OUT_TOKENS)])
    return Replica(model, np.array([32]), np.array([320]))


@cache
def latencies(decode: float, prefill: float, requests_per_s: float) -> tuple[float, float]:
    found = replica(decode, prefill).analyze(np.array([requests_per_s / 1000]))
    return float(found.ttft_ms[0]), float(found.itl_ms[0])


class Watched:
    """A server of a true speed, and the tuner that watches it."""

    def __init__(self, seed: int = 1, error: float = 0.05) -> None:
        self.tuner = SpeedTuner()
        self._draw = np.random.default_rng(seed)
        self._error = error
        self._at_s = 0.0

    def observe(
        self,
        decode: float,
        prefill: float,
        requests_per_s: float = 8.0,
        *,
        by_chance: float = 0.0,
        load_error: float = 0.0,
    ) -> bool:
        """`by_chance`: how much the load behind the means differs from the one that came."""
        behind = requests_per_s * math.exp(self._draw.normal(0.0, by_chance))
        ttft_ms, itl_ms = latencies(decode, prefill, behind)
        self._at_s += PERIOD_S
        noise = np.exp(self._draw.normal(0.0, self._error, 2))
        return self.tuner.observe(
            self._at_s,
            (ttft_ms * noise[0], self._error),
            (itl_ms * noise[1], self._error),
            load_error,
            lambda decode, prefill, load: latencies(decode, prefill, load * requests_per_s),
        )


@pytest.mark.parametrize(("decode", "prefill"), [(1.0, 1.0), (1.3, 1.2), (0.7, 0.8), (1.0, 1.5)])
def test_factors_become_those_of_the_server(decode: float, prefill: float) -> None:
    watched = Watched()
    for _ in range(30):
        watched.observe(decode, prefill)
    factors = watched.tuner.factors
    assert factors.decode == pytest.approx(decode, rel=0.1)
    assert factors.prefill == pytest.approx(prefill, rel=0.15)
    assert factors.decode_error < 0.1


def test_drift_is_followed() -> None:
    watched, speeds = Watched(), np.linspace(1.0, 1.6, 40)
    errors = []
    for speed in speeds:
        watched.observe(float(speed), 1.0)
        errors.append(watched.tuner.factors.decode / speed - 1)
    assert max(map(abs, errors[5:])) < 0.15


def test_a_single_accident_changes_nothing_and_a_new_speed_is_believed() -> None:
    watched = Watched()
    for _ in range(20):
        watched.observe(1.0, 1.0)
    before = watched.tuner.factors
    assert not watched.observe(4.0, 1.0)
    assert watched.tuner.factors == before
    for _ in range(3):
        assert watched.observe(1.0, 1.0)
    refused = [watched.observe(4.0, 1.0, 4.0) for _ in range(MAX_REFUSALS)]
    assert refused == [False] * (MAX_REFUSALS - 1) + [True]
    for _ in range(5):
        watched.observe(4.0, 1.0, 4.0)
    assert watched.tuner.factors.decode == pytest.approx(4.0, rel=0.15)


def test_most_usual_observations_are_accepted() -> None:
    watched = Watched()
    accepted = [watched.observe(1.1, 0.9) for _ in range(100)]
    assert np.mean(accepted) > GATE - 0.03


def test_error_is_what_the_factors_are_off_by() -> None:
    """Over many servers the factors lie within two standard errors of the truth as often as a
    normal distribution has it, or more: the model's own error is allowed for, and there is none."""
    inside = []
    for seed in range(16):
        watched = Watched(seed)
        for _ in range(10):
            watched.observe(1.2, 1.1)
        factors = watched.tuner.factors
        inside.append(abs(math.log(factors.decode / 1.2)) < 2 * factors.decode_error)
    assert np.mean(inside) > 0.9


def test_a_queue_that_is_long_by_chance_is_not_taken_for_a_slower_machine() -> None:
    """Near capacity, where TTFT differs from minute to minute more than any factor."""
    worst = []
    for load_error in (0.0, 0.1):
        watched, decode = Watched(), []
        accepted = 0
        for _ in range(60):
            accepted += watched.observe(1.0, 1.0, 17.0, by_chance=0.1, load_error=load_error)
            decode.append(watched.tuner.factors.decode)
        worst.append(max(abs(math.log(each)) for each in decode[20:]))
    assert accepted > 54
    assert worst[1] < worst[0]
    assert worst[1] < 0.15


def test_time_without_observations_makes_less_sure() -> None:
    watched = Watched()
    for _ in range(20):
        watched.observe(1.0, 1.0)
    sure = watched.tuner.factors.decode_error
    watched._at_s += 3600.0
    watched.observe(1.0, 1.0)
    assert watched.tuner.factors.decode_error > sure


@pytest.mark.parametrize(
    ("ttft_ms", "itl_ms"),
    [
        ((None, 0.1), (None, 0.1)),
        ((math.nan, 0.1), (math.inf, 0.1)),
        ((0.0, 0.1), (-1.0, 0.1)),
    ],
)
def test_nothing_is_learned_from_nothing(ttft_ms: Mean, itl_ms: Mean) -> None:
    tuner = SpeedTuner()
    assert not tuner.observe(1.0, ttft_ms, itl_ms, 0.0, lambda decode, prefill, load: (100.0, 10.0))
    assert tuner.factors.decode == 1.0


def test_model_without_an_answer_leaves_no_trace() -> None:
    tuner = SpeedTuner()
    assert not tuner.observe(
        1.0, (100.0, 0.1), (10.0, 0.1), 0.0, lambda decode, prefill, load: (math.inf, math.nan)
    )
    assert tuner.factors.decode == 1.0


def test_one_quantity_alone_is_enough() -> None:
    tuner = SpeedTuner()
    for at_s in range(1, 20):
        tuner.observe(
            float(at_s),
            (None, 0.1),
            (15.0, 0.02),
            0.0,
            lambda decode, prefill, load: (100.0 * prefill, 10.0 * decode),
        )
    assert tuner.factors.decode == pytest.approx(1.5, rel=0.05)
    assert tuner.factors.prefill == pytest.approx(1.0)


BODY = {
    "decodeParms": {"alpha": ALPHA_MS, "beta": BETA_MS},
    "prefillParms": {"gamma": GAMMA_MS, "delta": DELTA_MS},
    "maxBatchSize": 32,
    "avgInTokens": 128,
    "avgOutTokens": 64,
}


@pytest.fixture
def client() -> FlaskClient:
    return create_app(Settings()).test_client()


def seen(at_s: float, decode: float, requests_per_s: float = 8.0) -> dict[str, float]:
    ttft_ms, itl_ms = latencies(decode, 1.0, requests_per_s)
    return {"at": at_s, "arrivalRate": 60 * requests_per_s, "ttft": ttft_ms, "itl": itl_ms}


def test_route_answers_parameters_of_now(client: FlaskClient) -> None:
    observations = [seen(10.0 * at, 1.3) for at in range(20)]
    answer = client.post("/tune", json={**BODY, "observations": observations}).json
    assert answer is not None
    assert all(answer["accepted"])
    assert answer["factors"]["decode"] == pytest.approx(1.3, rel=0.02)
    assert answer["decodeParms"]["alpha"] == pytest.approx(1.3 * ALPHA_MS, rel=0.02)


def test_state_that_is_sent_along_goes_on(client: FlaskClient) -> None:
    observations = [seen(10.0 * at, 1.3) for at in range(6)]
    whole = client.post("/tune", json={**BODY, "observations": observations}).json
    state = None
    for each in observations:
        body = {**BODY, "observations": [each], "state": state}
        answer = client.post("/tune", json=body).json
        assert answer is not None
        state = answer["state"]
    assert whole is not None
    assert state == pytest.approx(whole["state"])


@given(st.floats(1e6, 1e12))
def test_what_is_not_known_for_any_time_stays_within_its_bound(passed_s: float) -> None:
    tuner = SpeedTuner(at_s=0.0)
    seen = (10.0, 0.1), (None, 0.1)
    assert tuner.observe(passed_s, *seen, 0.0, lambda decode, prefill, load: (10 * decode, 1.0))
    assert tuner.covariance.max() <= MAX_VARIANCE


def test_state_at_its_bounds_is_taken_back(client: FlaskClient) -> None:
    # Far beyond any factor, with years between: of prefill nothing is known but that.
    extremes = [
        {"at": 1e11 * at, "arrivalRate": 1.0, "ttft": ttft_ms, "itl": itl_ms}
        for at, (ttft_ms, itl_ms) in enumerate([(1e-6, 1e7), (1e-6, 1e7), (1e-6, 1e7), (1e-6, 1e7)])
    ]
    answer = client.post("/tune", json={**BODY, "observations": extremes}).json
    assert answer is not None
    assert answer["factors"]["decode"] == 100
    body = {**BODY, "observations": extremes[:1], "state": answer["state"]}
    assert client.post("/tune", json=body).status_code == 200


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"observations": []}, "observations"),
        ({"observations": [{"at": 0}]}, "observations[0].arrivalRate"),
        ({"observations": [seen(0.0, 1.0)] * 101}, "observations"),
        ({"state": {"decodeVariance": 1, "prefillVariance": 1, "covariance": 2}}, "state"),
        ({"state": {"decode": 0, "decodeVariance": 1, "prefillVariance": 1}}, "state.decode"),
    ],
)
def test_refusals_name_the_field(client: FlaskClient, fields: dict[str, Any], path: str) -> None:
    body = {**BODY, "observations": [seen(0.0, 1.0)], **fields}
    response = client.post("/tune", json=body)
    assert response.status_code == 400
    assert path in response.text


def test_service_curve_is_scaled_as_a_whole(client: FlaskClient) -> None:
    curve = {
        "decodeMs": [{"rows": 1, "ms": 5.0}, {"rows": 32, "ms": 20.0}],
        "promptTokenMs": 0.02,
    }
    query = {
        "serviceCurve": curve,
        "maxBatchSize": 32,
        "avgInTokens": 128,
        "avgOutTokens": 64,
        "outTokensScv": 1,
    }
    fast = client.post("/analyze", json={**query, "arrivalRate": 300}).json
    assert fast is not None
    slow = [
        {"at": at, "arrivalRate": 300, "itl": 1.5 * fast["itlAverage"], "itlError": 0.02}
        for at in range(6)
    ]
    answer = client.post("/tune", json={**query, "observations": slow}).json
    assert answer is not None
    factor = answer["factors"]["decode"]
    assert 1.1 < factor < 1.6
    now = answer["serviceCurve"]
    assert [point["ms"] for point in now["decodeMs"]] == pytest.approx([5 * factor, 20 * factor])
