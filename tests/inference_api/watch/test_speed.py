"""`GET /speed`: what steps take, as whoever plans with it reads it."""

from datetime import UTC, datetime

import pytest

from inference_api._mock_inference_api_server import ByteTokenizer, EchoRunner
from inference_api.core.step_costs import Contents
from inference_api.inference_api_server import create_server, server_of
from inference_api.model_loading import loaded_alone
from inference_api.settings import Settings

NAME = "hearth-tiny"


def test_times_are_of_the_moment_with_their_errors() -> None:
    app = create_server(Settings(user_rows=4))
    client, backend = app.test_client(), server_of(app).backend
    assert client.get("/speed").get_json() == {}
    backend.take([loaded_alone(NAME, EchoRunner(4, 64), ByteTokenizer(), backend.settings)])
    nothing = {"decode_ms": [], "prefill_ms_per_token": [], "speed": 1.0, "steps": 0}
    nothing |= {"steps_s": 0.0, "steps_by_tokens": []}
    nothing |= {"chunk_tokens": 256, "budget_tokens": 6}
    assert client.get("/speed").get_json() == {NAME: {**nothing, "measured_at": None}}

    costs = backend.served[NAME].costs
    costs.warmed_up({1: 0.001, 4: 0.004})
    for _ in range(500):
        costs.learn_turn(Contents(2, 2, 0), 0.004, 0.001)
        costs.learn_turn(Contents(2, 2, 10), 0.009, 0.001)
    costs.publish(datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    known = client.get("/speed").get_json()[NAME]
    assert (known["steps"], known["measured_at"]) == (1000, "2027-01-02T03:04:05Z")
    assert known["speed"] == pytest.approx(0.5, rel=0.02)
    assert [rows for rows, _, _ in known["decode_ms"]] == [1, 2, 3, 4]
    _, decode_ms, error_ms = known["decode_ms"][1]
    assert decode_ms == pytest.approx(5.0, rel=0.02)
    assert 0 < error_ms < 0.5
    assert known["steps_s"] == pytest.approx(500 * (0.004 + 0.009), rel=0.01)
    assert known["steps_by_tokens"] == [[2, 1000, 5000]]
    (prompts,) = known["prefill_ms_per_token"]
    assert prompts[:2] == pytest.approx([2, 0.5], rel=0.05)
