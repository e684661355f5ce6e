"""Random bodies, sound and broken, over every route that takes one: never a 500, never a NaN, and
what is refused changes nothing."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights.memory_store import MemoryStore
from tests.weights.support import DELETE, GENERATE, UPDATE, new_client

EXAMPLES = max(100, settings.default.max_examples if settings.default else 0)
ROUTES = [UPDATE, GENERATE, DELETE, "/weights_log", "/weights/sessions/s/observations",
          "/weights/sessions/s/partition"]  # fmt: skip

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 0.5, 0.3, -0.1, 1e-12, 1.0000001, 1e100, 1e300, 5e-324, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
SHARES = st.lists(st.sampled_from([0, 1, 0.5, 0.25, 0.75, 0.3, 0.7, 1e-9]), max_size=4)
VECTORS = st.one_of(SHARES, SHARES, st.lists(NUMBERS, max_size=4))
INTEGERS = st.sampled_from([0, 1, 2, 3, 4, 10, 256, 1024, 2**63, -1, 10**30])
TEXTS = st.sampled_from(["s", "t", "", "a/b", "\0", "maximize", "minimize", "x" * 300])
JUNK = st.one_of(st.none(), st.booleans(), INTEGERS, NUMBERS, TEXTS, st.just([]), st.just({}),
                 st.just([None]), st.just([[0.5]]))  # fmt: skip
OBSERVATIONS = st.lists(
    st.fixed_dictionaries({}, optional={"weights": VECTORS, "performance_metric": NUMBERS}),
    max_size=3,
)
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "session_id": st.just("s"),
    "number_of_nodes": st.just(2),
    "max_weightings": st.sampled_from([[1.0, 1.0], [0.5, 0.5], [0.75, 0.3]]),
    "weights": st.sampled_from([[0.5, 0.5], [0.7, 0.3], [0.75, 0.25], [1, 0]]),
    "performance_metric": st.floats(-1e100, 1e100),
    "direction": st.sampled_from(["maximize", "minimize"]),
    "min_weightings": st.sampled_from([[0, 0], [0.25, 0.25], None]),
    "seed": st.integers(0, 2**63 - 1),
    "count": st.integers(1, 4),
    "num_layers": st.one_of(st.none(), st.integers(1, 40)),
    "min_layers": st.integers(0, 3),
    "observations": OBSERVATIONS,
}
BROKEN: dict[str, st.SearchStrategy[Any]] = {
    "session_id": TEXTS, "number_of_nodes": INTEGERS, "max_weightings": VECTORS,
    "weights": VECTORS, "performance_metric": NUMBERS, "min_weightings": VECTORS,
    "seed": INTEGERS, "count": INTEGERS, "num_layers": INTEGERS, "min_layers": INTEGERS,
    "direction": TEXTS, "observations": OBSERVATIONS,
}  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str]:
    """(path, text): a sound body with up to two fields broken or gone, sometimes cut off."""
    body = {name: draw(strategy) for name, strategy in SOUND.items()}
    for name in draw(st.lists(st.sampled_from(sorted(SOUND)), max_size=2)):
        if draw(st.booleans()):
            body.pop(name, None)
        else:
            body[name] = draw(st.one_of(BROKEN[name], JUNK))
    text = json.dumps(body)
    if draw(st.integers(0, 19)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return draw(st.sampled_from(ROUTES)), text


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def client(store: MemoryStore) -> FlaskClient:
    return new_client(store)


def contents(store: MemoryStore) -> object:
    return [
        (one, len(store.observations(one.session_id, 0, 10**6))) for one in store.sessions(0, 10**6)
    ]


def answer(client: FlaskClient, path: str, text: str) -> int:
    response = client.post(path, data=text)
    json.loads(response.text, parse_constant=pytest.fail)
    return response.status_code


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(request=requests())
def test_no_body_is_answered_with_500_and_what_is_refused_changes_nothing(
    client: FlaskClient, store: MemoryStore, request: tuple[str, str]
) -> None:
    before = contents(store)
    status = answer(client, *request)
    assert status in (200, 404, 409, 422)
    if status != 200:
        assert contents(store) == before


@settings(
    max_examples=EXAMPLES // 5,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(
    metrics=st.one_of(
        st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=20),
        st.lists(st.sampled_from([5e-324, 1e-300, 1e-9, 1.0, 41.7, 1e9, 1e100]), min_size=3),
    ),
    direction=SOUND["direction"],
    data=st.data(),
)
def test_sound_histories_of_any_numbers_are_fitted_and_shown(
    metrics: list[float], direction: str, data: st.DataObject
) -> None:
    client = new_client()
    shares = data.draw(st.lists(st.floats(0, 1), min_size=len(metrics), max_size=len(metrics)))
    history = [
        {"weights": [share, 1 - share], "performance_metric": metric}
        for share, metric in zip(shares, metrics, strict=True)
    ]
    common = {"number_of_nodes": 2, "max_weightings": [1.0, 1.0], "direction": direction}
    path = "/weights/sessions/s"
    assert (
        answer(client, f"{path}/observations", json.dumps({**common, "observations": history}))
        == 200
    )
    query = {**common, "session_id": "s", "seed": 1}
    assert answer(client, GENERATE, json.dumps(query)) == 200
    assert answer(client, f"{path}/partition", json.dumps({"num_layers": 7})) == 200
    shown = json.loads(client.get(path).text, parse_constant=pytest.fail)
    best = shown["noise_aware_best"]
    assert sum(best["weights"]) == pytest.approx(1)
    assert shown["model"] == "random" or all(
        isinstance(number, float)
        for number in (best["performance_metric"], *best["interval_90"], *shown["concentration"])
    )
