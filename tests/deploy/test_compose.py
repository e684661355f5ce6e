"""docker-compose.yml and the Dockerfile are true of each other and of the processes they run, as
far as that shows without an engine. `make check` holds them to compose's schema and to hadolint.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from benchmarking.settings import Settings as BenchmarkSettings
from inference_api.settings import Settings as ApiSettings
from lab.images.dockerfile import Stage, read_stages
from lab.kit.servers import ROOT
from optimizer.settings import Settings as OptimizerSettings
from proxy.settings import Settings as ProxySettings
from scripts import init
from weights.settings import Settings as WeightsSettings

Service = dict[str, Any]

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GPU = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
SERVICES: dict[str, Service] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]

SETTINGS: dict[str, tuple[type[BaseSettings], ...]] = {
    "api": (ApiSettings, OptimizerSettings, WeightsSettings),
    "proxy": (ProxySettings,),
    "optimizer": (OptimizerSettings,),
    "weights": (WeightsSettings,),
    "benchmark": (BenchmarkSettings,),
}
NOT_PASSED = {
    # Where a process listens is its image's and this file's.
    *("SERVICE_HOST", "SERVICE_PORT", "PROXY_HOST", "PROXY_PORT", "PROXY_METRICS_PORT"),
    *("INFERNO_HOST", "INFERNO_PORT", "WEIGHTS_HOST", "WEIGHTS_PORT"),
    *("UPSTREAMS_SERVICE", "KUBERNETES_API", "KUBERNETES_ACCOUNT"),
    # Ranks are started by `hearth serve`, a container is one process.
    *("SPLIT", "SPLIT_RANKS", "SPLIT_TIMEOUT"),
}
NOT_SETTINGS = {"HF_TOKEN"}  # read by a library

VARIABLE = re.compile(r"\$\{(\w+)(?::?([-?])([^}]*))?\}")


STAGES = read_stages(ROOT / "Dockerfile")


def stage_of(service: Service) -> Stage:
    return STAGES[service["build"]["target"]]


def names_of(kind: type[BaseSettings]) -> set[str]:
    """Of the variables, the first where there are several."""
    names = set()
    for name, field in kind.model_fields.items():
        alias = field.validation_alias or name
        first = alias.choices[0] if isinstance(alias, AliasChoices) else alias
        names.add(str(first).upper())
    return names


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_passed_and_no_other_variable(name: str) -> None:
    settings = set[str]().union(*map(names_of, SETTINGS[name])) - NOT_PASSED
    if name == "api":
        settings -= {"JWT_SECRET"}  # the proxy alone has it
    if name == "benchmark":
        settings -= {"BENCHMARK_API_BASE"}  # its argument
    passed = SERVICES[name]["environment"].keys()
    assert passed - NOT_SETTINGS - {"PROXY_METRICS_HOST"} == settings - {"PROXY_METRICS_HOST"}


@pytest.mark.parametrize("name", OURS)
def test_what_it_says_itself_is_good(name: str) -> None:
    given = {
        key: VARIABLE.sub(lambda found: found[3] if found[2] == "-" else "s" * 64, value)
        for key, value in SERVICES[name]["environment"].items()
        if value is not None
    }
    for kind in SETTINGS[name]:
        fields = {key.lower(): value for key, value in given.items()}
        known = {key: value for key, value in fields.items() if key in kind.model_fields}
        assert kind.model_validate(known, by_name=True).model_fields_set == known.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_who_waits_for_another_waits_until_it_is_healthy(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        service = SERVICES[other]
        assert "healthcheck" in service or stage_of(service).of("HEALTHCHECK")
        assert {*service.get("profiles", [])} <= {*SERVICES[name].get("profiles", [])}
    assert SERVICES[name]["restart"] == ("no" if name == "benchmark" else "unless-stopped")


@pytest.mark.parametrize("name", OURS)
def test_ports_are_those_of_the_image_and_of_its_probe(name: str) -> None:
    stage = stage_of(SERVICES[name])
    exposed = stage.of("EXPOSE")
    for port in SERVICES[name].get("ports", []):
        assert VARIABLE.sub("", port).rpartition(":")[2] in exposed
    probed = re.findall(r"127\.0\.0\.1:(\d+)/", " ".join(stage.probe))
    assert probed == exposed  # none of either: the benchmark listens nowhere


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_there_and_the_user_may_write_them(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, *mode = VARIABLE.sub(lambda found: found[3], volume).split(":")
        if source.startswith("."):
            assert (ROOT / source).exists()
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]
            if name in OURS:
                (made,) = (
                    line
                    for line in stage_of(SERVICES[name]).of("RUN")
                    if "install --directory" in line
                )
                assert f" {target} " in made
    if name in OURS:
        assert SERVICES[name]["read_only"] is True


def test_every_volume_is_somebodys() -> None:
    used = {each.split(":")[0] for one in SERVICES.values() for each in one.get("volumes", [])}
    assert COMPOSE["volumes"].keys() <= used


images = pytest.mark.parametrize(
    "stage", [each for each in STAGES.values() if each.is_image], ids=lambda each: each.name
)


@images
def test_no_image_has_a_compiler_and_torch_but_where_it_is_asked_for(stage: Stage) -> None:
    serves = stage.name in ("api", "ray", "default")
    assert "g++" not in "".join(stage.of("RUN"))
    (*_, packages) = (STAGES[name] for name in brought(stage, "/opt/hearth"))
    assert "g++" not in "".join(packages.of("RUN"))
    with_gcc = [each for each in stage.of("RUN") if "gcc" in each]
    assert [each.startswith('if [ -n "$CUDA" ]') for each in with_gcc] == [True] * serves
    installed = "".join(packages.of("RUN"))
    assert ("requirements-serve.txt" in installed) == serves
    assert ("${CUDA:+-r requirements-cuda.txt}" in installed) == serves
    assert installed.count("cuda") == serves
    assert (brought(stage, "/hearth/inference_api/kernels/built") == ["kernels"]) == serves
    assert stage.of("USER")[-1] == "1000"


def brought(stage: Stage, folder: str) -> list[str]:
    """Names of the stages that it has `folder` from."""
    copies = [line.split() for line in stage.of("COPY")]
    return [words[0].removeprefix("--from=") for words in copies if words[1] == folder]


@images
def test_an_image_runs_what_is_there(stage: Stage) -> None:
    match stage.command:
        case ["gunicorn", "--config", path]:
            assert (ROOT / path).is_file()
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module)
        case other:
            assert other[0] == "ray"


def test_the_gpu_is_the_apis_with_torch() -> None:
    (name,) = GPU["services"]
    assert name == "api"
    assert GPU["services"][name]["build"]["args"] == {"CUDA": "1"}
    assert "docker-compose.gpu.yml" in init.GPU_FILES


@pytest.mark.parametrize("has_gpu", [False, True])
def test_init_writes_every_secret_that_is_needed(has_gpu: bool) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    needed = {name for name, how, _ in VARIABLE.findall(text) if how == "?"}
    lines = [line for line in init.content(has_gpu).splitlines() if not line.startswith("#")]
    written = dict(line.split("=", 1) for line in lines)
    assert needed <= written.keys() <= needed | {"GRAFANA_PASSWORD", "COMPOSE_FILE"}
    assert ("COMPOSE_FILE" in written) == has_gpu
    ProxySettings.model_validate({"jwt_secret": written["JWT_SECRET"], "proxy_host": "0.0.0.0"})
    if has_gpu:
        assert all((ROOT / name).is_file() for name in written["COMPOSE_FILE"].split(":"))
    ignored = Path(ROOT / ".gitignore").read_text() + (ROOT / ".dockerignore").read_text()
    assert ignored.splitlines().count(str(init.ENV)) == 2
