"""The driver of exo, against a cluster that follows a script."""

import json
from typing import Any

import pytest

from tests.weights.drivers.scripted_exo import MODEL, Cluster, served
from tests.weights.memory_store import MemoryStore
from weights.drivers import exo as exo_module
from weights.drivers.exo import ExoDriver, choose_preview, free_bytes_of, runner_state
from weights.drivers.http import Http, HttpRefused
from weights.drivers.loop import Search, drive
from weights.errors import EngineUnusable, TrialFailed
from weights.samplers import SAMPLERS
from weights.service import WeightsService


def driver_at(url: str) -> ExoDriver:
    return ExoDriver(Http(url), MODEL, repeats=1, load_timeout_s=30, poll_s=0.01)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exo_module, "REST_S", 0.0)


def cluster(**fields: Any) -> Cluster:
    """Three nodes; the fastest has room for nine layers of 100 bytes, and a little for its cache"""
    free = {"A": 1010, "B": 5000, "C": 5000}
    return Cluster({"A": 1.0, "B": 2.0, "C": 4.0}, free, **fields)


def found_on(exo: Cluster, lines: list[str]) -> tuple[int, ...]:
    service = WeightsService(MemoryStore(), SAMPLERS["adaptive"])
    with served(exo) as url:
        driver = driver_at(url)
        return drive(driver, Search(service, "s", driver.ring), 25, lines.append)


@pytest.mark.slow
def test_it_finds_the_best_split_and_leaves_the_cluster_serving() -> None:
    exo = cluster()
    lines: list[str] = []
    # A single stream: as much as fits on the fastest, then on the next.
    assert found_on(exo, lines) == (9, 6, 1)
    assert len(exo.instances) == 1
    result = json.loads(lines[-1])
    assert result["setting"].splitlines()[1] == "B start_layer=9 end_layer=15"
    assert result["best"] == {"A": 9, "B": 6, "C": 1}


@pytest.mark.slow
def test_a_split_that_breaks_is_told_and_the_search_goes_on() -> None:
    exo = cluster(breaks={(9, 6, 1)})
    lines: list[str] = []
    assert found_on(exo, lines) != (9, 6, 1)
    assert len(exo.posted) > 3
    broken = [each for each in map(json.loads, lines) if "failed" in each]
    assert all(each["layers"] == [9, 6, 1] for each in broken)


def test_posted_instances_have_new_names_and_only_what_exo_gave() -> None:
    exo = cluster()
    with served(exo) as url:
        driver = driver_at(url)
        driver.measure((4, 6, 6))
        driver.measure((4, 6, 6))
    first, second = exo.posted
    assert first["instanceId"] != second["instanceId"] != "preview"
    runners = [*first["shardAssignments"]["runnerToShard"]]
    assert not set(runners) & {"r-A", "r-B", "r-C"}
    assert [*first["shardAssignments"]["nodeToRunner"].values()] == runners
    assert [*first] == ["instanceId", "ephemeralPort", "hostsByNode", "shardAssignments"]


def test_instances_that_run_are_replaced_only_where_that_is_asked_for() -> None:
    exo = cluster(instances={"i-1": {}})
    with served(exo) as url:
        with pytest.raises(EngineUnusable, match=r"1 instances run .* --replace"):
            driver_at(url)
        assert exo.instances
        driver = ExoDriver(Http(url), MODEL, replaces=True, poll_s=0.01)
        assert driver.ring.max_layers == (9, 16, 16)
        assert not exo.instances


def test_a_node_that_refuses_to_delete_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Http.call

    def refusing(http: Http, verb: str, *asked: Any, **named: Any) -> Any:
        if verb == "DELETE":
            raise HttpRefused(500, "busy")
        return call(http, verb, *asked, **named)

    monkeypatch.setattr(Http, "call", refusing)
    with (
        served(cluster(instances={"i-1": {}})) as url,
        pytest.raises(EngineUnusable, match="500 busy"),
    ):
        ExoDriver(Http(url), MODEL, replaces=True, poll_s=0.01)


def test_previews_are_asked_for_again_while_memory_is_being_freed() -> None:
    with served(cluster(errors_first=3)) as url:
        assert driver_at(url).ring.nodes == ("A", "B", "C")


def test_a_failing_runner_is_a_failed_trial_with_exos_reason() -> None:
    exo = cluster(breaks={(4, 6, 6)})
    with served(exo) as url:
        driver = driver_at(url)
        with pytest.raises(TrialFailed, match="out of memory"):
            driver.measure((4, 6, 6))


def test_nodes_without_room_are_named() -> None:
    exo = cluster()
    exo.free_bytes["B"] = 50
    with served(exo) as url:
        driver = driver_at(url)
        service = WeightsService(MemoryStore(), SAMPLERS["adaptive"])
        with pytest.raises(EngineUnusable, match="B has room for 0 layers"):
            Search(service, "s", driver.ring).check()


def test_no_answer_is_said_with_the_address() -> None:
    with pytest.raises(EngineUnusable, match=r"http://127.0.0.1:1 does not answer GET /state"):
        driver_at("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "instance",
    [None, [], {}, {"shardAssignments": []}, {"shardAssignments": {"nodeToRunner": {"a": 1}}}],
)
def test_previews_of_another_form_are_refused(instance: Any) -> None:
    preview = {"sharding": "Pipeline", "instance": {"MlxRingInstance": instance}, "error": None}
    with pytest.raises(EngineUnusable, match="preview cannot be read"):
        choose_preview([preview], 3)


def test_errors_of_previews_are_the_reason() -> None:
    previews = [{"error": "no cycle found"}, {"error": "no cycle found"}, 7]
    with pytest.raises(EngineUnusable, match=r"ring of 2 nodes \(no cycle found\)$"):
        choose_preview(previews, 2)


@pytest.mark.parametrize("state", [None, [], {"nodeMemory": []}, {"nodeMemory": {"a": 1}}])
def test_states_without_memory_have_none(state: Any) -> None:
    assert free_bytes_of(state) == {}
    assert runner_state(state)[1] == ""


def test_settings_are_plain_json(tmp_path: Any) -> None:
    exo = cluster()
    with served(exo) as url:
        driver_at(url).measure((8, 5, 3))
    assert json.loads(json.dumps(exo.posted[0])) == exo.posted[0]
