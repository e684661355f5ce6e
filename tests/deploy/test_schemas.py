"""The manifests of deploy/kubernetes against the schemas of Kubernetes, KEDA and Ray."""

import json
import re
import subprocess
from copy import deepcopy

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from kubernetes.client import V1Deployment

from cluster.actuators import workloads as actuated
from lab.kit.servers import ROOT, TIMEOUT_S
from tests.deploy.custom_resources import RAY_CLUSTER, SCALED_OBJECT
from tests.deploy.manifests import (
    FOLDER,
    Object,
    every_workload,
    everything,
    name_of,
    read,
)

VERSION = "1.33"
CUSTOM = {"ScaledObject": SCALED_OBJECT, "RayCluster": RAY_CLUSTER}
DOCUMENT = ROOT / "docs" / "kubernetes.md"


def schema_faults(item: Object) -> list[str]:
    if item["kind"] in CUSTOM:
        return [
            each.message for each in Draft202012Validator(CUSTOM[item["kind"]]).iter_errors(item)
        ]
    try:
        kubernetes_validate.validate(item, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


def keda_faults(item: Object) -> str:
    command = [ROOT / ".venv" / "bin" / "node", ROOT / "tests" / "deploy" / "scaled_object.mjs"]
    answer = subprocess.run(
        command, input=json.dumps(item), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert answer.stderr == ""
    return answer.stdout.strip()


@pytest.mark.parametrize(
    "item", [each for each in everything().values() if each["kind"] == "ScaledObject"], ids=name_of
)
def test_scaled_objects_are_of_the_types_that_keda_publishes(item: Object) -> None:
    assert keda_faults(item) == ""
    spec = item["spec"]
    assert "scaleTargetRef" in keda_faults(item | {"spec": {"triggers": spec["triggers"]}})
    assert "maxReplicaCount" in keda_faults(item | {"spec": spec | {"maxReplicaCount": "4"}})


@pytest.mark.parametrize("item", everything().values(), ids=name_of)
def test_every_object_is_of_its_schema(item: Object) -> None:
    assert schema_faults(item) == []


def test_pods_of_the_ray_cluster_are_of_their_schema() -> None:
    (cluster,) = read(FOLDER / "ray" / "raycluster.yaml")
    spec = cluster["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **group["template"]}
        assert schema_faults(pod) == []
    (worker,) = spec["workerGroupSpecs"]
    assert json.loads(json.loads(worker["rayStartParams"]["resources"])) == {"acc_cpu-core": 1}
    pinned = dict(
        re.findall(r"^(\w+)==(.+)$", (ROOT / "requirements-cluster.txt").read_text(), re.M)
    )
    assert spec["rayVersion"] == pinned["ray"]


def test_the_container_of_another_engine_is_of_its_schema_and_has_rows_and_a_port() -> None:
    """Kubernetes puts the value of USER_ROWS into `$(USER_ROWS)`."""
    text = DOCUMENT.read_text().partition("```yaml engine\n")[2].partition("```")[0]
    deployment = deepcopy(every_workload()["chat-h100"].item)
    deployment["spec"]["template"]["spec"]["containers"] = [yaml.safe_load(text)]
    assert schema_faults(deployment) == []
    read = actuated.Deployment(V1Deployment.from_dict(deployment))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--port={read.port}" in container["args"]
    assert "--max-num-seqs=$(USER_ROWS)" in container["args"]
    assert read.user_rows == 32
