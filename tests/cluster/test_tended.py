"""How replicas are tended, on machines that follow a script."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cluster.actuators import Placed, probes, tended
from cluster.actuators.local import LocalMachine
from cluster.actuators.probes import ReplicaProbes
from cluster.actuators.tended import GRACE_BEYOND_DRAIN_S, STEADY_S, TendedReplicas, Times
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.engines import ENGINES, HEARTH, Engine
from cluster.errors import ActuatorUnusable, ConfigFaulty
from cluster.replicas import Group, Recipe, Recipes, ReplicaState
from lab.kit.servers import eventually
from proxy.upstreams.specs import UpstreamSpec, parse_upstreams
from tests.cluster import foreign_engine
from tests.proxy.support import Peer, ScriptedUpstream

CHAT, CODE = Group("chat", "core", 4), Group("code", "core", 4)
TIMES = Times(probe_s=0.02, leave_s=7, drain_s=100)


class ScriptedMachines:
    """Every replica is the same scripted server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.here: dict[str, Placed] = {}
        self.calls: list[str] = []
        self.recipes: list[Recipe] = []
        self.num_rounds = 0
        self.fault: str | None = None

    def placed(self) -> Sequence[Placed]:
        self.num_rounds += 1
        if self.fault is not None:
            raise ActuatorUnusable(self.fault)
        return tuple(self.here.values())

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        self.recipes.append(recipe)
        self.here[name] = Placed(name, group, self.url)
        return None

    def mark_leaving(self, name: str) -> None:
        here = self.here[name]
        self.here[name] = Placed(name, here.group, here.url, is_leaving=True)

    def terminate(self, name: str) -> None:
        self.calls.append("terminate")

    def remove(self, name: str) -> None:
        self.calls.append("remove")
        del self.here[name]

    def close(self) -> None:
        self.calls.append("close")

    def wait_for_rounds(self) -> None:
        seen = self.num_rounds
        eventually(lambda: self.num_rounds > seen + 2)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server() -> Iterator[ScriptedUpstream]:
    server = ScriptedUpstream()
    models = b'{"data": [{"id": "tiny"}, {"id": "alias"}]}'
    server.scripts["/v1/models"] = lambda peer: peer.reply(models)
    yield server
    server.stop()


@pytest.fixture
def machines(server: ScriptedUpstream) -> ScriptedMachines:
    return ScriptedMachines(server.url)


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not answered in a round's time is taken in a later one."""
    monkeypatch.setattr(tended, "ReplicaProbes", partial(ReplicaProbes, round_s=0.05))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "upstreams.yaml"


def tending(
    machines: ScriptedMachines, path: Path, clock: Clock, *servers: str, engine: Engine = HEARTH
) -> TendedReplicas:
    settings: dict[str, dict[str, str]] = {name: {} for name in servers or ("chat",)}
    costs = {("chat", "core"): 40.0}
    recipes = Recipes(settings, {"core": {}}, {"chat": engine}, costs=costs)
    return TendedReplicas(machines, recipes, UpstreamsFile(path), TIMES, clock)


@pytest.fixture
def replicas(machines: ScriptedMachines, path: Path, clock: Clock) -> Iterator[TendedReplicas]:
    replicas = tending(machines, path, clock)
    yield replicas
    replicas.close()


def listed(path: Path) -> tuple[UpstreamSpec, ...]:
    """As the proxy reads it."""
    return parse_upstreams(path.read_text())


def chat_at(url: str, **fields: Any) -> UpstreamSpec:
    spec = UpstreamSpec(url, **{"server": CHAT.server, **fields})
    return replace(spec, cents_per_hour=40.0 if spec.server == CHAT.server else None)


def states(replicas: TendedReplicas) -> list[ReplicaState]:
    return [each.state for each in replicas.replicas()]


def test_the_proxy_has_its_time_before_a_replica_drains(
    replicas: TendedReplicas, machines: ScriptedMachines, clock: Clock, path: Path
) -> None:
    replicas.start(CHAT, 1)
    eventually(lambda: listed(path) == (chat_at(machines.url),))
    replicas.stop(CHAT, 0)
    assert listed(path) == ()
    machines.wait_for_rounds()
    clock.now_s += 6.9
    machines.wait_for_rounds()
    assert machines.calls == []
    clock.now_s += 0.2
    eventually(lambda: machines.calls == ["terminate"])


def test_a_replica_that_does_not_end_by_itself_is_killed(
    replicas: TendedReplicas, machines: ScriptedMachines, clock: Clock, path: Path
) -> None:
    replicas.start(CHAT, 1)
    eventually(lambda: listed(path))
    replicas.stop(CHAT, 0)
    machines.wait_for_rounds()
    clock.now_s += 8
    eventually(lambda: machines.calls == ["terminate"])
    clock.now_s += TIMES.drain_s
    machines.wait_for_rounds()
    assert machines.calls == ["terminate"]
    clock.now_s += 31
    eventually(lambda: machines.calls == ["terminate", "remove"])
    assert states(replicas) == []


def test_one_that_was_never_ready_is_stopped_at_once(
    replicas: TendedReplicas, machines: ScriptedMachines, server: ScriptedUpstream
) -> None:
    server.scripts["/ready"] = lambda peer: peer.reply(b"{}", "503 Service Unavailable")
    replicas.start(CHAT, 1)
    assert states(replicas) == [ReplicaState.STARTING]
    replicas.stop(CHAT, 0)
    eventually(lambda: machines.calls == ["terminate"])


def test_one_health_check_without_an_answer_is_a_moments_load(
    replicas: TendedReplicas,
    server: ScriptedUpstream,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas.start(CHAT, 1)
    eventually(lambda: listed(path))
    answers = iter([False, True, True, True])
    answered: list[bool] = []

    def answer_or_not(peer: object) -> None:
        will = next(answers, True)
        answered.append(will)
        if will:
            peer.reply(b"{}")  # type: ignore[attr-defined]

    server.scripts["/ready"] = answer_or_not
    eventually(lambda: len(answered) > 1)
    assert states(replicas) == [ReplicaState.READY]
    monkeypatch.setattr(probes, "BOUNDS", replace(probes.BOUNDS, read_s=0.3))
    server.scripts["/ready"] = lambda peer: None
    eventually(lambda: listed(path) == ())
    assert states(replicas) == [ReplicaState.STARTING]


def test_one_that_drips_takes_no_other_out_of_service(
    replicas: TendedReplicas, machines: ScriptedMachines, server: ScriptedUpstream, path: Path
) -> None:
    replicas.start(CHAT, 1)
    eventually(lambda: listed(path))
    dripping = ScriptedUpstream()
    began, end = Event(), Event()

    def drip(peer: Peer) -> None:
        began.set()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        while not end.wait(0.02):
            peer.send(b"x")

    dripping.scripts["/ready"] = drip
    try:
        machines.here["other"] = Placed("other", CHAT, dripping.url)
        assert began.wait(60)
        machines.wait_for_rounds()
        assert listed(path) == (chat_at(server.url),)
        assert sorted(states(replicas)) == [ReplicaState.READY, ReplicaState.STARTING]
    finally:
        end.set()
        dripping.stop()


def crash(machines: ScriptedMachines) -> None:
    """All that run end by themselves."""
    machines.here = {name: replace(each, ended="oops") for name, each in machines.here.items()}


def test_one_that_crashes_again_and_again_is_started_later_each_time(
    replicas: TendedReplicas, machines: ScriptedMachines, clock: Clock, path: Path
) -> None:
    def is_another(crashed: list[str]) -> bool:
        return len(machines.here) == 1 and list(machines.here) != crashed

    replicas.start(CHAT, 1)
    for wait_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 1):
        eventually(lambda: states(replicas) == [ReplicaState.READY])
        clock.now_s += STEADY_S if wait_s == 1 else 10
        crashed = list(machines.here)
        crash(machines)
        machines.wait_for_rounds()
        clock.now_s += wait_s - 0.1
        machines.wait_for_rounds()
        replicas.start(CHAT, 1)
        assert list(machines.here) == crashed
        clock.now_s += 0.2
        eventually(partial(is_another, crashed))


def test_one_that_was_never_ready_is_started_later_each_time_it_is_wanted(
    replicas: TendedReplicas, machines: ScriptedMachines, server: ScriptedUpstream, clock: Clock
) -> None:
    server.scripts["/ready"] = lambda peer: peer.reply(b"{}", "503 Service Unavailable")
    replicas.start(CHAT, 1)
    for wait_s in (1, 2, 4, 8):
        crash(machines)
        machines.wait_for_rounds()
        clock.now_s += wait_s - 0.1
        replicas.start(CHAT, 1)
        assert states(replicas) == [ReplicaState.FAILED]
        clock.now_s += 0.2
        replicas.start(CHAT, 1)
        assert states(replicas) == [ReplicaState.STARTING]


VLLM = ENGINES["vllm"]


class VllmUpstream:
    """Says how many requests it has; 404 to all else but /health."""

    def __init__(self, server: ScriptedUpstream) -> None:
        self.num_running = 1
        server.scripts["/health"] = lambda peer: peer.reply(b"")
        server.scripts["/ready"] = lambda peer: peer.reply(b"", "404 Not Found")
        server.scripts["/metrics"] = self._metrics

    def _metrics(self, peer: Peer) -> None:
        engine = foreign_engine.Engine("vllm", rows=4)
        engine.count(running=self.num_running)
        peer.reply(engine.page().encode())


@pytest.fixture
def vllm(server: ScriptedUpstream) -> VllmUpstream:
    return VllmUpstream(server)


def test_another_engine_gets_sigterm_once_it_has_no_requests(
    machines: ScriptedMachines, vllm: VllmUpstream, clock: Clock, path: Path
) -> None:
    with closing(tending(machines, path, clock, engine=VLLM)) as replicas:
        replicas.start(CHAT, 1)
        eventually(lambda: listed(path) == (chat_at(machines.url, health_path="/health", rows=4),))
        replicas.stop(CHAT, 0)
        machines.wait_for_rounds()
        clock.now_s += TIMES.leave_s + 1
        machines.wait_for_rounds()
        assert machines.calls == []
        vllm.num_running = 0
        eventually(lambda: machines.calls == ["terminate"])


def test_another_engine_gets_sigterm_when_its_time_is_over(
    machines: ScriptedMachines, vllm: VllmUpstream, clock: Clock, path: Path
) -> None:
    with closing(tending(machines, path, clock, engine=VLLM)) as replicas:
        replicas.start(CHAT, 1)
        eventually(lambda: listed(path))
        replicas.stop(CHAT, 0)
        machines.wait_for_rounds()
        clock.now_s += TIMES.leave_s + TIMES.drain_s - 0.1
        machines.wait_for_rounds()
        assert machines.calls == []
        clock.now_s += 0.2
        eventually(lambda: machines.calls == ["terminate"])
        clock.now_s += GRACE_BEYOND_DRAIN_S + 0.1
        eventually(lambda: machines.calls == ["terminate", "remove"])


def test_a_controller_that_is_started_again_cuts_off_no_stream_of_one_that_leaves(
    machines: ScriptedMachines, vllm: VllmUpstream, clock: Clock, path: Path
) -> None:
    with closing(tending(machines, path, clock, engine=VLLM)) as first:
        first.start(CHAT, 1)
        eventually(lambda: listed(path))
        first.stop(CHAT, 0)
    with closing(tending(machines, path, clock, engine=VLLM)):
        machines.wait_for_rounds()
        clock.now_s += TIMES.leave_s + 1
        machines.wait_for_rounds()
        assert "terminate" not in machines.calls
        vllm.num_running = 0
        eventually(lambda: "terminate" in machines.calls)


def test_machines_that_cannot_be_reached_change_nothing(
    replicas: TendedReplicas, machines: ScriptedMachines, path: Path
) -> None:
    replicas.start(CHAT, 1)
    eventually(lambda: listed(path))
    machines.fault = "the head is gone"
    machines.wait_for_rounds()
    assert len(listed(path)) == 1
    with pytest.raises(ActuatorUnusable, match="the head is gone"):
        replicas.replicas()
    machines.fault = None
    assert states(replicas) == [ReplicaState.READY]


def test_of_several_servers_each_gets_requests_for_its_own_models(
    machines: ScriptedMachines, path: Path, clock: Clock
) -> None:
    replicas = tending(machines, path, clock, "chat", "code")
    try:
        replicas.start(CODE, 1)
        eventually(lambda: listed(path))
        assert listed(path) == (chat_at(machines.url, models=("tiny", "alias"), server="code"),)
    finally:
        replicas.close()


def test_models_that_the_file_names_need_not_be_listed(
    machines: ScriptedMachines, path: Path, clock: Clock
) -> None:
    recipes = Recipes({"chat": {}, "code": {}}, {"core": {}}, models={"code": ("c",)})
    with closing(TendedReplicas(machines, recipes, UpstreamsFile(path), TIMES, clock)) as replicas:
        replicas.start(CODE, 1)
        eventually(lambda: listed(path))
        assert listed(path) == (chat_at(machines.url, models=("c",), server="code"),)


def test_replicas_drain_as_long_as_the_actuator_waits(
    replicas: TendedReplicas, machines: ScriptedMachines
) -> None:
    replicas.start(CHAT, 1)
    assert machines.recipes[0].settings == {"USER_ROWS": "4", "DRAIN_TIMEOUT": "100"}


def test_a_server_that_the_file_does_not_name_is_refused(replicas: TendedReplicas) -> None:
    with pytest.raises(ConfigFaulty, match="'code' is not among the servers"):
        replicas.start(CODE, 1)


def test_replicas_go_on_when_the_controller_ends_and_stay_listed(
    machines: ScriptedMachines, path: Path, clock: Clock
) -> None:
    first = tending(machines, path, clock)
    first.start(CHAT, 1)
    eventually(lambda: listed(path))
    first.close()
    assert machines.calls == ["close"]
    before = path.stat().st_ino
    second = tending(machines, path, clock)
    assert path.stat().st_ino == before, "it has not been away for a moment"
    assert states(second) == [ReplicaState.READY]
    second.close()


def test_machines_are_free_for_another_try_where_the_file_cannot_be_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file/upstreams.yaml", "upstreams.yaml"):
        machine, file = LocalMachine(tmp_path / "replicas"), UpstreamsFile(tmp_path / name)
        if name.startswith("file"):
            with pytest.raises(OSError, match="file"):
                TendedReplicas(machine, Recipes({}, {}), file)
        else:
            TendedReplicas(machine, Recipes({}, {}), file).close()


@pytest.mark.parametrize("text", ["upstreams: [http://a:1]\n", "", "# Written by"])
def test_a_file_of_somebody_else_is_not_written_over(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    if text:
        with pytest.raises(ConfigFaulty, match="was not written by this cluster"):
            UpstreamsFile(path)
        assert path.read_text() == text
    else:
        UpstreamsFile(path).write([])
        assert listed(path) == ()
