"""The controller's thread and what it says over HTTP, over an actuator in memory."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.serving import make_server

from cluster.actuators import Actuator
from cluster.controller.app import MAX_INVOKES, create_app
from cluster.controller.cycle import ControllerParts
from cluster.controller.loop import DECISIONS_KEPT, Controller
from cluster.controller.optimizer import OptimizerClient
from cluster.errors import ActuatorUnusable
from lab.kit.servers import eventually, free_port, json_lines
from optimizer.app import create_app as create_app_of_optimizer
from optimizer.settings import Settings as OptimizerSettings
from tests.cluster.fleet import CountingReader, MemoryActuator, config, system, system_json

DEADLINE_S = 60.0


class Running:
    """A controller that is invoked, at times that it is told."""

    def __init__(
        self,
        url: str,
        folder: Path,
        create: Callable[[], Actuator] | None = None,
        document: dict[str, Any] | None = None,
        at_s: float = 0.0,
        **keys: Any,
    ) -> None:
        self.actuator, self.reader = MemoryActuator(), CountingReader()
        self.system = system(document or system_json(rate=3000))
        self.config = config(
            self.system,
            **{"period_s": 0, "rollout_s": 0.1, "journal": folder / "cluster.jsonl", **keys},
        )
        parts = ControllerParts(self.config, self.system, OptimizerClient(url), self.reader)
        self.at_s = at_s
        self.controller = Controller(parts, create or (lambda: self.actuator), lambda: self.at_s)
        self.client: FlaskClient = create_app(self.controller, self.system).test_client()
        self.controller.start()

    def journal(self) -> list[dict[str, Any]]:
        return json_lines(self.config.journal)


@pytest.fixture
def run(optimizer_url: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(create: Callable[[], Actuator] | None = None, **keys: Any) -> Running:
        running.append(Running(keys.pop("url", optimizer_url), tmp_path, create, **keys))
        return running[-1]

    yield start
    for each in running:
        each.controller.stop()
        assert not each.controller.is_alive


def test_a_cycle_that_was_asked_for_is_answered_journaled_and_shown(
    run: Callable[..., Running],
) -> None:
    running = run()
    answer = running.client.post("/invoke")
    assert answer.status_code == 200
    assert answer.json is not None
    plan = answer.json["servers"]["s"]["plan"]
    assert plan == [{"accelerator": "A", "user_rows": 16, "replicas": 4}]
    line = running.journal()[0]
    assert line["question"]["serverData"]["servers"][0]["name"] == "s"
    assert line["answer"]["allocations"]["s"]["numReplicas"] == 4
    state = running.client.get("/state").json
    assert state is not None
    assert state["servers"]["s"]["plan"] == plan
    assert state["servers"]["s"]["target"]["slo-itl"] == 25
    (decision,) = state["decisions"]
    assert (decision["cycle"], decision["servers"]["s"]["plan"]) == (1, plan)
    assert len(running.actuator.replicas()) == 4


def test_gauges_say_what_is_wanted_and_what_is_there(run: Callable[..., Running]) -> None:
    running = run()
    running.client.post("/invoke")
    running.actuator.settle()
    eventually(
        lambda: {each.state for each in running.controller.snapshot.replicas} == {"ready"},
        DEADLINE_S,
    )
    text = running.client.get("/metrics").text
    samples = {
        (sample.name, sample.labels.get("server"), sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["hearth_cluster_desired_replicas", "s", None] == 4
    assert samples["hearth_cluster_current_replicas", "s", "ready"] == 4
    assert samples["hearth_cluster_cycle", None, None] == 1
    assert samples["hearth_cluster_fault", None, None] == 0


def test_the_last_decisions_are_kept(run: Callable[..., Running]) -> None:
    running = run(dry_run=True)
    for _ in range(DECISIONS_KEPT + 3):
        running.controller.invoke(DEADLINE_S)
    kept = [each["cycle"] for each in running.controller.snapshot.decisions]
    assert kept == [*range(DECISIONS_KEPT + 3, 3, -1)]


def test_periods_come_by_themselves(run: Callable[..., Running]) -> None:
    running = run(period_s=0.2)
    eventually(lambda: len(running.journal()) >= 3, DEADLINE_S)
    assert [each["cycle"] for each in running.journal()[:3]] == [1, 2, 3]


def test_without_a_period_nothing_comes_by_itself(run: Callable[..., Running]) -> None:
    running = run()
    eventually(lambda: running.config.journal.exists(), DEADLINE_S)
    assert running.journal() == []


def test_a_dry_run_plans_and_starts_nothing(run: Callable[..., Running]) -> None:
    running = run(dry_run=True)
    running.client.post("/invoke")
    assert running.journal()[0]["dry_run"]
    assert running.actuator.calls == []


def test_an_optimizer_that_is_away_is_a_fault_of_the_cycle(run: Callable[..., Running]) -> None:
    running = run(url="http://127.0.0.1:1")
    answer = running.client.post("/invoke")
    assert answer.status_code == 200
    assert answer.json is not None
    assert "optimizeOne" in answer.json["fault"]
    assert running.client.get("/health").status_code == 200


def test_an_optimizer_that_starts_later_is_asked_again_soon(run: Callable[..., Running]) -> None:
    port = free_port()
    running = run(url=f"http://127.0.0.1:{port}", period_s=86_400)
    eventually(lambda: len(running.journal()) >= 2, DEADLINE_S)
    assert running.controller.snapshot.plan == {}
    server = make_server("127.0.0.1", port, create_app_of_optimizer(OptimizerSettings()))
    thread = Thread(target=server.serve_forever, name="optimizer")
    thread.start()
    try:
        eventually(lambda: len(running.actuator.replicas()) == 4, DEADLINE_S)
    finally:
        server.shutdown()
        thread.join(DEADLINE_S)
        server.server_close()


def test_machines_that_are_away_are_tried_again(run: Callable[..., Running]) -> None:
    actuator, tries = MemoryActuator(), []

    def create() -> Actuator:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ActuatorUnusable("no machine answers")
        return actuator

    running = run(create)
    eventually(lambda: len(tries) >= 3, DEADLINE_S)
    assert running.client.post("/invoke").status_code == 200


def test_requests_that_wait_for_a_cycle_leave_threads_for_others(
    run: Callable[..., Running],
) -> None:
    may_go_on = Event()

    def create() -> Actuator:
        may_go_on.wait(DEADLINE_S)
        return MemoryActuator()

    running = run(create)
    with ThreadPoolExecutor(MAX_INVOKES) as threads:
        try:
            waiting = [threads.submit(running.client.post, "/invoke") for _ in range(MAX_INVOKES)]
            eventually(lambda: running.controller._invocations.qsize() == MAX_INVOKES, DEADLINE_S)
            answer = running.client.post("/invoke")
            assert answer.status_code == 503
            assert "ask again" in answer.text
        finally:
            may_go_on.set()
    assert [each.result().status_code for each in waiting] == [200] * MAX_INVOKES
    assert running.client.post("/invoke").status_code == 200


def test_what_a_cycle_needs_and_fails_is_told_to_who_asked(run: Callable[..., Running]) -> None:
    class Away(MemoryActuator):
        def replicas(self) -> Any:
            raise ActuatorUnusable("the head is gone")

    running = run(Away)
    answer = running.client.post("/invoke")
    assert answer.status_code == 503
    assert answer.json is not None
    assert answer.json["message"] == "the head is gone"
    state = running.client.get("/state").json
    assert state is not None
    assert state["fault"] == "the head is gone"


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), KeyError("s"), RecursionError()])
@pytest.mark.parametrize("part", ["create", "replicas", "start", "read", "waiting_at_door"])
def test_a_cycle_that_fails_is_told_and_the_next_one_comes(
    part: str, error: Exception, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken = True
    actuator = MemoryActuator()

    def breaks(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if is_broken:
                raise error
            return call(*arguments)

        return called

    for owner in (MemoryActuator, CountingReader):
        if hasattr(owner, part):
            monkeypatch.setattr(owner, part, breaks(getattr(owner, part)))
    running = run(breaks(lambda: actuator) if part == "create" else lambda: actuator)
    for _ in range(2):
        answer = running.client.post("/invoke")
        assert answer.status_code == 503
        assert answer.json is not None
        assert repr(error) in answer.json["message"]
    assert running.client.get("/health").status_code == 200
    assert "hearth_cluster_faults_total 0.0" not in running.client.get("/metrics").text
    if part != "create":
        assert repr(error) in running.journal()[0]["fault"]
    is_broken = False
    assert running.client.post("/invoke").status_code == 200
    assert running.journal()[-1]["servers"]["s"]["plan"]


def test_a_restarted_controller_knows_how_its_forecasts_did(run: Callable[..., Running]) -> None:
    before, rng = run(), Random(1)
    for _ in range(16):
        before.at_s = before.reader.at_s = before.at_s + 60
        before.reader.serve(before.actuator.replicas(), rng.randrange(1000, 1100))
        before.controller.invoke(DEADLINE_S)
        before.actuator.settle()
    before.controller.stop()
    scores = before.journal()[-1]["servers"]["s"]["scores"]
    assert scores["arrivals_per_minute"]["judged"] > 3
    with before.config.journal.open("a") as stream:
        stream.write('{"servers":{"s":{"judged":{"itl_ms":{"distance":"far"}}}}}\n{"servers":\n')
    after = run()
    cycle = after.controller.invoke(DEADLINE_S)
    assert {name: asdict(each) for name, each in cycle.servers["s"].scores.items()} == scores


def test_a_restarted_controller_knows_the_load_and_how_long_starts_take(
    run: Callable[..., Running],
) -> None:
    before = run()
    for took_s in (30, 60, 60):
        before.controller.invoke(DEADLINE_S)
        before.at_s = before.reader.at_s = before.at_s + took_s
        before.actuator.settle()
        eventually(lambda: before.controller.ready_in_s("s") == 0, DEADLINE_S)
        before.reader.serve(before.actuator.replicas(), 100)
    load = before.controller.invoke(DEADLINE_S).servers["s"].load
    before.controller.stop()
    assert load.per_minute < 3000, "which the document says"
    starts_s = before.journal()[-1]["starts_s"]
    assert set(starts_s["s"]) == {30.0}
    after = run(at_s=before.at_s + 1)
    assert after.controller.invoke(DEADLINE_S).servers["s"].load == load
    assert after.journal()[-1]["starts_s"] == starts_s
    assert after.controller.ready_in_s("s") == 30


def test_a_thread_that_has_ended_is_not_healthy(run: Callable[..., Running]) -> None:
    running = run()
    running.controller.stop()
    assert running.client.get("/health").status_code == 500
    assert running.client.post("/invoke").status_code == 503


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}],
)
def test_pages_of_others_may_not_invoke(
    run: Callable[..., Running], headers: dict[str, str]
) -> None:
    running = run()
    assert running.client.post("/invoke", headers=headers).status_code == 403
    assert running.journal() == []


@pytest.mark.parametrize("path", ["/", "/state", "/metrics", "/docs/"])
def test_name_that_a_page_has_had_point_here_is_not_ours(
    run: Callable[..., Running], path: str
) -> None:
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    client = run().client
    assert client.get(path, headers=rebound).status_code == 403
    assert client.post("/invoke", headers=rebound).status_code == 403


@pytest.mark.parametrize("path", ["/nope", "/assets/nope.js", "/assets/..%2Fapp.py", "/assets/%00"])
def test_what_is_not_there_is_not_found(run: Callable[..., Running], path: str) -> None:
    assert run().client.get(path).status_code == 404


def test_get_does_not_invoke(run: Callable[..., Running]) -> None:
    running = run()
    refused = running.client.get("/invoke")
    assert (refused.status_code, refused.allow) == (405, {"POST", "OPTIONS"})
    assert running.client.post("/state").status_code == 405
