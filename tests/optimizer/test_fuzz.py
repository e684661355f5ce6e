"""Random bodies, sound and broken, over every route that takes one: never a 500, never a NaN.

125 bodies by default, 12,500 with `--hypothesis-profile=optimizer-full`.
"""

import json
import math
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.app import create_app
from optimizer.inferno_json import Body
from optimizer.questions.how_many import HowManyQuery
from optimizer.questions.queries import AnalyzeQuery, SizeQuery
from optimizer.questions.tune import TuneQuery
from optimizer.questions.whatif import WhatIfQuery
from optimizer.settings import Settings
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    CapacityData,
    CapacitySpec,
    ModelData,
    OptimizerSpec,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
    SystemData,
)
from optimizer.state import StateData
from tests.optimizer.support import SPEED, perf, server, system_data, target

HANG_S = 60  # some milliseconds; minutes where each state of a queue is gone through
EXAMPLES = max(100, settings.default.max_examples if settings.default else 0)

ROUTES: dict[tuple[str, str], type[Body]] = {
    ("POST", "/setAccelerators"): AcceleratorData,
    ("POST", "/addAccelerator"): AcceleratorSpec,
    ("POST", "/setCapacities"): CapacityData,
    ("POST", "/setCapacity"): CapacitySpec,
    ("POST", "/setModels"): ModelData,
    ("POST", "/addModelAcceleratorPerf"): PerfData,
    ("POST", "/setServiceClasses"): ServiceClassData,
    ("POST", "/addServiceClassModelTargets"): ServiceClassSpec,
    ("POST", "/setServers"): ServerData,
    ("POST", "/addServer"): ServerSpec,
    ("POST", "/optimize"): OptimizerSpec,
    ("POST", "/optimizeOne"): SystemData,
    ("POST", "/analyze"): AnalyzeQuery,
    ("POST", "/size"): SizeQuery,
    ("POST", "/whatif"): WhatIfQuery,
    ("POST", "/tune"): TuneQuery,
    ("POST", "/howmany"): HowManyQuery,
    ("PUT", "/state"): StateData,
}

NAMES = st.sampled_from(["m", "A", "B", "c", "s", "Free", "", "x/y", "\u0000", "\ud800", "<&>"])
INTEGERS = st.sampled_from([0, 1, 2, 3, 16, 100, 512, 8192, 10**6, 2**31 - 1, 2**63, -1])
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 0.3, 1e-12, 1e-300, 1e9, 1e12, 1e15, 1e39, -1, -0.0]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), INTEGERS, NUMBERS, NAMES,
    st.just([]), st.just({}), st.just([None]), st.just({"a": [1]}),
)  # fmt: skip


def bodies(model: type[Body]) -> st.SearchStrategy[dict[str, Any]]:
    """From the type's own fields: each left out, sound, or something else altogether."""
    fields = {
        field.alias or name: st.one_of(values(field.annotation), values(field.annotation), JUNK)
        for name, field in model.model_fields.items()
    }
    return st.fixed_dictionaries({}, optional=fields)


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, type) and issubclass(kind, Body):
        return st.deferred(lambda: bodies(kind))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(NAMES, values(arguments[1]), max_size=3)
    if origin in (Union, UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is not None:  # Annotated
        return values(arguments[0])
    simple = {str: NAMES, bool: st.booleans(), int: INTEGERS, float: NUMBERS}
    return simple.get(kind, JUNK)


BODIES = {route: bodies(model) for route, model in ROUTES.items()}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    path = tmp_path_factory.mktemp("fuzz") / "o.db"
    app = create_app(Settings(stateful=True, store_path=path, milp_time_limit_s=0.5))
    app.config["PROPAGATE_EXCEPTIONS"] = True
    return app


def _reject(constant: str) -> None:
    raise AssertionError(f"{constant} in an answer")


def post(app: Flask, verb: str, path: str, text: str | bytes) -> int:
    response = app.test_client().open(path, method=verb, data=text)
    json.loads(response.text, parse_constant=_reject)
    return response.status_code


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, str]:
    """(verb, path, text): a body for any route, sometimes cut off."""
    verb, path = draw(st.sampled_from(sorted(ROUTES)))
    text = json.dumps(draw(BODIES[verb, path]))
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return verb, path, text


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(request=requests())
def test_bodies_of_every_type_are_answered(app: Flask, request: tuple[str, str, str]) -> None:
    assert post(app, *request) in (200, 400, 404, 412)


RATES = st.sampled_from([0, 1e-9, 1, 120, 1e5, 1e12])
SPEEDS = st.sampled_from([0, 1e-9, 0.01, 0.3, 10, 1e6])
TOKENS = st.sampled_from([0, 1, 128, 10**6])


@st.composite
def systems(draw: st.DrawFn) -> dict[str, Any]:
    """Sound systems with extreme numbers."""
    speed = {
        "decodeParms": {"alpha": draw(SPEEDS), "beta": draw(SPEEDS)},
        "prefillParms": {"gamma": draw(SPEEDS), "delta": draw(SPEEDS)},
        "maxBatchSize": draw(st.sampled_from([0, 1, 16, 10**6])),
        "atTokens": draw(TOKENS),
    }
    servers = [
        server(
            f"s{i}", draw(RATES), avgInTokens=draw(TOKENS), avgOutTokens=draw(TOKENS),
            minNumReplicas=draw(st.sampled_from([0, 1, 3])),
            maxBatchSize=draw(st.sampled_from([0, 1, 2**31 - 1])),
            currentAlloc=draw(st.sampled_from([{}, {"accelerator": "A", "numReplicas": 2}])),
        )
        for i in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    levels = target(
        slo_itl=draw(st.sampled_from([0, 1e-9, 14, 1e12])),
        slo_ttft=draw(st.sampled_from([0, 500, 1e12])),
        slo_tps=draw(st.sampled_from([0, 1, 1e12])),
    )
    flags: dict[str, Any] = draw(st.fixed_dictionaries({}, optional={
        "unlimited": st.booleans(), "milpSolver": st.booleans(), "heterogeneous": st.booleans(),
        "delayedBestEffort": st.booleans(), "saturationPolicy": st.sampled_from(["RoundRobin"]),
        "minGainPercent": st.just(5),
    }))  # fmt: skip
    perfs = [perf("A", **speed), perf("B")]
    return system_data(servers, perfs=perfs, targets=levels, **flags)


@settings(
    max_examples=EXAMPLES // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(body=systems())
def test_sound_systems_with_extreme_numbers_are_answered(app: Flask, body: dict[str, Any]) -> None:
    assert post(app, "POST", "/optimizeOne", json.dumps(body)) == 200
    names = [one["name"] for one in body["system"]["serverData"]["servers"]]
    for path in ("/plan", "/state", "/getServers", *(f"/explain/{name}" for name in names)):
        assert post(app, "GET", path, "") == 200


@settings(
    max_examples=EXAMPLES // 10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(body=systems())
def test_what_a_solve_answers_is_taken_back(app: Flask, body: dict[str, Any]) -> None:
    client = app.test_client()
    answered = client.post("/optimizeOne", json=body).get_json()["allocations"]
    for one in body["system"]["serverData"]["servers"]:
        one["currentAlloc"] = answered.get(one["name"], one["currentAlloc"])
    assert client.post("/optimizeOne", json=body).status_code == 200
    state = client.get("/state").get_json()
    assert client.put("/state", json=state).status_code == 200
    assert client.get("/state").get_json()["system"] == state["system"]


TIMES = st.sampled_from([1e-6, 0.3, 10.0, 1e9])
ERRORS = st.sampled_from([1e-9, 0.1, 10.0])


@st.composite
def tunings(draw: st.DrawFn) -> dict[str, Any]:
    """Sound questions to /tune with extreme numbers."""
    points = [{"rows": rows, "ms": ms} for rows, ms in enumerate(sorted(draw(st.lists(TIMES))), 1)]
    curve = {"decodeMs": points, "promptTokenMs": draw(TIMES)}
    speed = {
        "decodeParms": {"alpha": draw(TIMES), "beta": draw(TIMES)},
        "prefillParms": {"gamma": draw(TIMES), "delta": draw(TIMES)},
        **({"serviceCurve": curve} if points else {}),
    }
    seen = {
        "arrivalRate": st.sampled_from([1e-300, 1e-9, 1.0, 1e5, 1e15]),
        "ttft": st.sampled_from([0, 1e-300, 1e-6, 1.0, 1e12]),
        "itl": st.sampled_from([0, 1e-300, 1e-6, 1.0, 1e12]),
        "ttftError": ERRORS, "itlError": ERRORS, "loadError": ERRORS,
    }  # fmt: skip
    observations = draw(st.lists(st.fixed_dictionaries(seen), min_size=1, max_size=8))
    steps = draw(st.sampled_from([0, 1, 1e11]))
    told = [{"at": steps * number, **each} for number, each in enumerate(observations)]
    return {**speed, "maxBatchSize": 8, "avgOutTokens": 64, "observations": told}


@settings(max_examples=EXAMPLES // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=tunings())
def test_what_the_tuner_answers_is_taken_back(app: Flask, body: dict[str, Any]) -> None:
    client = app.test_client()
    for _ in range(3):
        response = client.post("/tune", json=body)
        assert response.status_code == 200, response.text
        answer = response.get_json()
        kept = ("state", "decodeParms", "prefillParms", "perfParms", "serviceCurve")
        body |= {name: answer[name] for name in kept}


@pytest.mark.parametrize(
    "fields",
    [
        {"decodeParms": {}, "prefillParms": {}},
        {"avgInTokens": 0, "avgOutTokens": 1},
        {"decodeParms": {"alpha": 10, "beta": 0}},
        {"maxBatchSize": 1},
        {"maxBatchSize": 65_536, "avgOutTokens": 1},
        {"arrivalRate": 1e12},
        {"arrivalRate": 1e-12, "maxQueueSize": 2**31 - 1},
    ],
)
@pytest.mark.timeout(HANG_S)
def test_hard_cases_are_answered(app: Flask, fields: dict[str, Any]) -> None:
    body = {**SPEED, "maxBatchSize": 16, "avgInTokens": 128, "avgOutTokens": 512,
            **fields}  # fmt: skip
    rate = {"arrivalRate": body.pop("arrivalRate", 60)}
    for path, asked in (("/analyze", rate), ("/size", {"slo-itl": 14, "slo-ttft": 500})):
        assert post(app, "POST", path, json.dumps(body | asked)) in (200, 400)


@pytest.mark.timeout(HANG_S)
def test_huge_batches_of_a_whole_system_are_answered(app: Flask) -> None:
    body = system_data([server(maxBatchSize=2**31 - 1, avgOutTokens=1)], unlimited=True)
    assert post(app, "POST", "/optimizeOne", json.dumps(body)) == 200


@pytest.mark.parametrize("rate", [5e-324, 1e-310])
def test_rates_that_would_underflow_are_no_load(app: Flask, rate: float) -> None:
    body = json.dumps(system_data([server(rate=rate)], unlimited=True))
    assert post(app, "POST", "/optimizeOne", body) == 200
    for path, asked in (
        ("/analyze", {**SPEED, "maxBatchSize": 8, "avgOutTokens": 9}),
        ("/howmany", {"model": "llama-3.1-8b"}),
    ):
        assert post(app, "POST", path, json.dumps({**asked, "arrivalRate": rate})) == 400


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b"1e999", b'{"a":' * 5000,
                                  b'{"name":"x","cost":1' + b"0" * 5000 + b"}"])  # fmt: skip
def test_text_that_is_hardly_json_is_refused(app: Flask, text: bytes) -> None:
    assert post(app, "POST", "/addAccelerator", text) == 400
