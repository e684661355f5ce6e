"""The manifests of deploy/kubernetes: good Kubernetes, and true of the processes they run."""

import importlib.util
import json
import re
from typing import Any

import pytest
import yaml
from kubernetes.client import V1Deployment
from pydantic_settings import BaseSettings

from cluster.actuators import workloads as actuated
from inference_api.settings import Settings as ApiSettings
from lab.kit.servers import ROOT
from optimizer.metrics import ReplicaGauges
from optimizer.settings import Settings as OptimizerSettings
from optimizer.state import SystemState
from proxy.settings import Settings as ProxySettings
from proxy.upstreams.endpoint_slices import PORT_NAME, Services
from proxy.worker import GRACE_S as PROXY_GRACE_S
from tests.deploy.manifests import (
    FOLDER,
    OVERLAYS,
    Workload,
    by_kind,
    every_workload,
    name_of,
    read,
    resources,
    selected,
    workloads,
)
from weights.settings import Settings as WeightsSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "api": ApiSettings,
    "optimizer": OptimizerSettings,
    "proxy": ProxySettings,
    "weights": WeightsSettings,
}
# What follows `hearth` in the name of an image, where that is not the component's.
IMAGES = {"chat-cpu-core": "", "chat-h100": "-cuda", "controller": "-cluster"}
OTHERS = ("redis", "controller")  # without settings of ours in the environment
AUTOSCALED = ("hpa", "keda", "planner")
SERVICE_GRACE_S = 30  # common.launcher.threaded
DOCUMENT = ROOT / "docs" / "kubernetes.md"

ours = pytest.mark.parametrize(
    "workload",
    [each for each in every_workload().values() if each.component not in OTHERS],
    ids=lambda each: each.name,
)
each_workload = pytest.mark.parametrize(
    "workload", every_workload().values(), ids=lambda each: each.name
)
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def variables(settings: type[BaseSettings]) -> dict[str, str]:
    """Names of fields by those of their variables."""
    fields = settings.model_fields.items()
    return {str(field.validation_alias or name).upper(): name for name, field in fields}


def settings_of(workload: Workload) -> BaseSettings:
    """As the process reads them; refuses what it would refuse."""
    kind = SETTINGS[workload.component]
    names = variables(kind)
    given = {names[key]: value for key, value in workload.environment.items()}
    return kind.model_validate(given, by_name=True, by_alias=True)


def test_every_file_is_part_of_something() -> None:
    named = {
        (path.parent / name).resolve()
        for path in FOLDER.glob("*/kustomization.yaml")
        for item in read(path)
        for name in [
            *item["resources"],
            *(file for each in item.get("configMapGenerator", []) for file in each["files"]),
        ]
    }
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    alone = {
        path for path in files if path.name == "kustomization.yaml" or path.parent.name == "ray"
    }
    assert files - alone == {path for path in named if path.is_file()}


@ours
def test_every_variable_is_a_setting_and_its_value_is_good(workload: Workload) -> None:
    unknown = workload.environment.keys() - variables(SETTINGS[workload.component]).keys()
    assert not unknown
    settings_of(workload)


@ours
def test_ports_are_those_that_the_process_listens_on(workload: Workload) -> None:
    settings: Any = settings_of(workload)
    expected = {
        "api": lambda: {"http": settings.service_port},
        "proxy": lambda: {"http": settings.proxy_port, "metrics": settings.proxy_metrics_port},
    }.get(workload.component, lambda: {"http": settings.port})()
    assert workload.ports == expected
    image_environment = dict(
        re.findall(r"^ENV (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    )
    hosts = [value for key, value in workload.environment.items() if key.endswith("_HOST")]
    assert hosts or image_environment["SERVICE_HOST"]
    assert {*hosts} <= {"0.0.0.0"}, "a probe comes from outside of the pod"


@each_workload
def test_commands_are_there(workload: Workload) -> None:
    match workload.container.get("command"):
        case None:  # the image's own
            assert workload.component in ("api", "redis")
        case ["gunicorn", "--config", path]:
            assert (ROOT / path).is_file()
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), module
        case other:
            raise AssertionError(other)


@each_workload
def test_probes_ask_ports_that_are_there(workload: Workload) -> None:
    probes = [each for key, each in workload.container.items() if key.endswith("Probe")]
    assert len(probes) >= 2
    for probe in probes:
        if "httpGet" in probe:
            assert probe["httpGet"]["port"] in workload.ports
            assert probe["httpGet"]["path"] in ("/ready", "/health")


@each_overlay
def test_selectors_find_pods_and_ports(overlay: str) -> None:
    there = workloads(overlay)
    for each in there:
        assert selected(each.item["spec"]["selector"], there) == [each]
    for service in by_kind(overlay, "Service"):
        found = selected(service["spec"]["selector"], there)
        assert found, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert all(pod.ports[port["targetPort"]] == port["port"] for pod in found)
    for budget in by_kind(overlay, "PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"], there)


def test_network_policies_are_about_pods_and_ports_that_are_there() -> None:
    there = workloads("controller")
    for policy in by_kind("controller", "NetworkPolicy"):
        pods = selected(policy["spec"]["podSelector"], there)
        assert pods
        for rule in policy["spec"].get("ingress", []):
            for port in rule["ports"]:
                assert all(port["port"] in pod.ports for pod in pods)
            for source in rule.get("from", []):
                assert "namespaceSelector" in source or selected(source["podSelector"], there)


@each_overlay
def test_what_is_named_is_there(overlay: str) -> None:
    names = {name_of(each) for each in resources(overlay)}
    for each in workloads(overlay):
        if account := each.pod.get("serviceAccountName"):
            assert f"ServiceAccount/{account}" in names
        else:
            assert each.pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in each.pod.get("volumes", [])}
        claims = {c["metadata"]["name"] for c in each.item["spec"].get("volumeClaimTemplates", [])}
        assert {m["name"] for m in each.container["volumeMounts"]} == volumes | claims
        for volume in each.pod.get("volumes", []):
            if "configMap" in volume:
                assert f"ConfigMap/{volume['configMap']['name']}" in names
    for binding in by_kind(overlay, "RoleBinding"):
        assert f"Role/{binding['roleRef']['name']}" in names
        for subject in binding["subjects"]:
            assert f"ServiceAccount/{subject['name']}" in names
            assert subject["namespace"] == "hearth"


def test_secrets_are_made_by_a_documented_command() -> None:
    for each in every_workload().values():
        for variable in each.container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                made = f"secret generic {reference['name']} \\\n"
                assert made in DOCUMENT.read_text()
                assert f"--from-literal={reference['key']}=" in DOCUMENT.read_text()


def grace_of(workload: Workload) -> float:
    """Seconds that the process may take to end, by its own rules."""
    settings: Any = settings_of(workload)
    match workload.component:
        case "api":
            found = re.search(
                r"^GRACE_BEYOND_DRAIN_S = (\d+)", (ROOT / "gunicorn.conf.py").read_text(), re.M
            )
            assert found is not None
            return float(settings.drain_timeout_s) + float(found[1])
        case "proxy":
            return float(settings.drain_timeout) + PROXY_GRACE_S
        case _:
            return SERVICE_GRACE_S


@ours
def test_nothing_is_killed_before_its_drain_is_over(workload: Workload) -> None:
    lifecycle = workload.container.get("lifecycle", {})
    sleep_s = lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert workload.pod["terminationGracePeriodSeconds"] > sleep_s + grace_of(workload)
    # In it the proxy hears of an end: a watch's delay, a health check that hangs, a tick.
    assert sleep_s >= 5 or workload.component not in ("api", "proxy")


@each_workload
def test_pods_are_as_confined_as_the_namespace_demands(workload: Workload) -> None:
    pod, container = workload.pod, workload.container
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False, "a Service proxy would set PROXY_PORT"
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    if workload.component != "redis":
        (user,) = re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text())
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert container["image"] == f"hearth{IMAGES.get(workload.name, f'-{workload.component}')}"


@each_workload
def test_only_what_may_be_twice_overlaps_in_a_rollout(workload: Workload) -> None:
    if workload.item["kind"] == "StatefulSet":
        return
    strategy = workload.item["spec"]["strategy"]
    if workload.component in ("api", "proxy"):
        assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    else:
        assert strategy == {"type": "Recreate"}


@each_overlay
def test_replicas_have_one_owner(overlay: str) -> None:
    targets = [
        each["spec"]["scaleTargetRef"]
        for each in resources(overlay)
        if "scaleTargetRef" in each.get("spec", {})
    ]
    names = [target["name"] for target in targets]
    assert len(names) == len(set(names))
    for config in by_kind(overlay, "ConfigMap"):
        assert yaml.safe_load(config["data"]["cluster.yaml"])["dry_run"] is (overlay in AUTOSCALED)
    assert bool(targets) == (overlay in ("hpa", "keda"))
    there = {each.name for each in workloads(overlay)}
    for target in targets:
        assert (target["apiVersion"], target["kind"]) == ("apps/v1", "Deployment")
        assert target["name"] in there
    for each in workloads(overlay):
        assert ("replicas" in each.item["spec"]) == (each.component != "api")


@pytest.mark.parametrize("name", ["chat-cpu-core", "chat-h100"])
def test_the_actuator_knows_the_deployments_for_groups(name: str) -> None:
    workload = every_workload()[name]
    deployment = actuated.Deployment(V1Deployment.from_dict(workload.item))
    accelerator = {"chat-cpu-core": "cpu-core", "chat-h100": "H100"}[name]
    assert deployment.labelled == ("chat", accelerator)
    assert deployment.user_rows == 32
    assert deployment.port == workload.ports["http"]


def test_the_proxy_follows_services_that_are_there() -> None:
    (proxy,) = (each for each in workloads("base") if each.component == "proxy")
    services = Services.parse(proxy.environment["UPSTREAMS_SERVICE"])
    there = {each["metadata"]["name"]: each for each in by_kind("base", "Service")}
    assert services.namespace == "hearth"
    for name in services.names:
        (port,) = there[name]["spec"]["ports"]
        assert port["name"] == PORT_NAME


def gauge_selectors() -> list[tuple[str, dict[str, str]]]:
    (hpa,) = by_kind("hpa", "HorizontalPodAutoscaler")
    (scaled,) = by_kind("keda", "ScaledObject")
    metric = hpa["spec"]["metrics"][0]["external"]["metric"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    found = re.fullmatch(r"max\((\w+)\{(.*)\}\)", query)
    assert found is not None
    return [
        (metric["name"], metric["selector"]["matchLabels"]),
        (found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2]))),
    ]


@pytest.mark.parametrize(("metric", "labels"), gauge_selectors())
def test_autoscalers_read_gauges_that_the_optimizer_has(
    metric: str, labels: dict[str, str]
) -> None:
    gauges = {each.name: each for each in ReplicaGauges(SystemState).collect()}
    assert metric in gauges
    assert labels.keys() <= set(gauges[metric]._labelnames)
    assert labels == {"variant_name": "chat", "accelerator_type": "cpu-core"}


@pytest.mark.parametrize("overlay", ["controller", "planner"])
def test_the_controllers_files_name_what_is_deployed(overlay: str) -> None:
    (config,) = by_kind(overlay, "ConfigMap")
    cluster = yaml.safe_load(config["data"]["cluster.yaml"])
    system = json.loads(config["data"][cluster["system"]])["system"]
    assert cluster["servers"].keys() == {s["name"] for s in system["serverData"]["servers"]}
    accelerators = {a["name"] for a in system["acceleratorData"]["accelerators"]}
    assert cluster["accelerators"].keys() == accelerators
    deployed = {
        (each.labels["hearth.dev/server"], each.labels["hearth.dev/accelerator"])
        for each in workloads(overlay)
        if each.component == "api"
    }
    assert deployed == {(server, each) for server in cluster["servers"] for each in accelerators}
    ports = {
        name: port for each in workloads(overlay) for name, port in [(each.component, each.ports)]
    }
    assert cluster["optimizer"] == f"http://optimizer:{ports['optimizer']['http']}"
    assert cluster["listen"].endswith(f":{ports['controller']['http']}")
    (controller,) = (each for each in workloads(overlay) if each.component == "controller")
    mounts = {mount["name"]: mount["mountPath"] for mount in controller.container["volumeMounts"]}
    assert controller.container["command"][-1] == f"{mounts['cluster']}/cluster.yaml"
    assert cluster["journal"].startswith(f"{mounts['journal']}/")
