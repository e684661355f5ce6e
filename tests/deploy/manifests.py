"""The manifests of deploy/kubernetes as `kubectl apply -k` would take them, without kubectl."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.kit.servers import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "controller", "gpu", "hpa", "keda", "planner")
WORKLOADS = ("Deployment", "StatefulSet")

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    objects = yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
    return [each for each in objects if each]


def resources(overlay: str) -> list[Object]:
    """Of a kustomization and those it names; ConfigMaps are the only ones that are merged."""
    found: dict[str, Object] = {}
    for each in _resources(FOLDER / overlay):
        if each["kind"] == "ConfigMap" and name_of(each) in found:
            each["data"] = found[name_of(each)]["data"] | each["data"]
        found[name_of(each)] = each
    return list(found.values())


def _resources(folder: Path) -> Iterator[Object]:
    (kustomization,) = read(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator"}
    assert kustomization.keys() <= known, "patches and images would change what is tested here"
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        yield from _resources(path) if path.is_dir() else read(path)
    for each in kustomization.get("configMapGenerator", []):
        files = {name: (folder / name).read_text() for name in each["files"]}
        metadata = {"name": each["name"]}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}


def by_kind(overlay: str, *kinds: str) -> list[Object]:
    return [each for each in resources(overlay) if each["kind"] in kinds]


def everything() -> dict[str, Object]:
    """Each object of all overlays once, and those that stand alone."""
    found = {name_of(each): each for overlay in OVERLAYS for each in resources(overlay)}
    return found | {name_of(each): each for each in read(FOLDER / "ray" / "raycluster.yaml")}


def name_of(item: Object) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


@dataclass(frozen=True)
class Workload:
    """A Deployment or StatefulSet of one container."""

    item: Object

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def pod(self) -> Object:
        spec: Object = self.item["spec"]["template"]["spec"]
        return spec

    @property
    def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self.item["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        found: Object = container
        return found

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def environment(self) -> dict[str, str]:
        """With a secret's value in the place of a secret."""
        found = self.container.get("env", [])
        return {each["name"]: each.get("value", "s" * 32) for each in found}

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]


def workloads(overlay: str) -> list[Workload]:
    return [Workload(each) for each in by_kind(overlay, *WORKLOADS)]


def every_workload() -> dict[str, Workload]:
    return {each.name: each for overlay in OVERLAYS for each in workloads(overlay)}


def selected(selector: Object, among: list[Workload]) -> list[Workload]:
    """By a LabelSelector, or by a Service's bare labels."""
    is_bare = not selector.keys() & {"matchLabels", "matchExpressions"}
    wanted = selector if is_bare else selector.get("matchLabels", {})
    found = [each for each in among if wanted.items() <= each.labels.items()]
    for term in selector.get("matchExpressions", []):
        assert term["operator"] == "In"
        found = [each for each in found if each.labels.get(term["key"]) in term["values"]]
    return found
