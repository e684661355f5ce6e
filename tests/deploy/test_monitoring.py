"""A real Prometheus scrapes a real API behind a real proxy: every query of the dashboard and of the
documents returns data. The files of deploy/ fit each other and docker-compose.yml."""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from common.fetch import answers_ok
from lab.kit.servers import MOCK_APP, ROOT, TIMEOUT_S, eventually, free_port
from tests.forked import served
from tests.proxy.support import ProxyProcess, bearer, running_proxy

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "hearth.json"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
SYSTEM = ROOT / "tests" / "data" / "optimizer" / "systems" / "s00_documented.json"


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[str]:
    """With what Grafana would put in for its variables."""
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [expr.replace("$__rate_interval", "1m").replace('"$model"', '".*"') for expr in targets]


def documented_queries() -> list[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return [query.strip() for query in re.findall(r"```promql\n(.*?)```", text, re.DOTALL)]


def config_of(api: str, proxy: str) -> str:
    """The deployed configuration, for other addresses and an impatient test."""
    config = yaml.safe_load(PROMETHEUS.read_text())
    config["global"]["scrape_interval"] = "250ms"
    targets = {"hearth-api": api, "hearth-proxy": proxy}
    for job in config["scrape_configs"]:
        job["static_configs"][0]["targets"] = [targets.pop(job["job_name"])]
    assert not targets
    return yaml.safe_dump(config)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("monitored")
    api = served(folder / "log", MOCK_APP, SPECULATION="ngram")
    with api as mock, running_proxy(folder, mock.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def prometheus(proxy: ProxyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that scrapes both."""
    folder = tmp_path_factory.mktemp("prometheus")
    (upstream,) = re.findall(r'upstream="127.0.0.1:(\d+)"', proxy.metric("/metrics"))[:1]
    api, control = f"127.0.0.1:{upstream}", f"127.0.0.1:{proxy.metrics_port}"
    (folder / "prometheus.yml").write_text(config_of(api, control))
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml"]
    options = [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: answers_ok(f"{url}/-/ready"))
        yield url
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def use(proxy: ProxyProcess) -> None:
    """Some of everything that is counted."""
    for text in ("one prompt", "one prompt with the same beginning", "a loop, a loop, a loop"):
        for path in ("/inference", "/inference/nobody"):
            requests.post(
                proxy.url + path, json={"text": text}, headers=bearer(), timeout=TIMEOUT_S
            )


def has_data(prometheus: str, query: str) -> bool:
    response = requests.get(
        f"{prometheus}/api/v1/query", params={"query": query}, timeout=TIMEOUT_S
    )
    assert response.ok, f"{query}: {response.text}"
    series = response.json()["data"]["result"]
    return any(not math.isnan(float(one["value"][1])) for one in series)


def test_every_query_returns_data(proxy: ProxyProcess, prometheus: str) -> None:
    system = json.loads(SYSTEM.read_text())["input"]
    solved = requests.post(
        f"{proxy.url}/optimizeOne", json=system, headers=bearer(), timeout=TIMEOUT_S
    )
    assert solved.status_code == 200
    waiting = dashboard_queries() + documented_queries()
    assert len(waiting) > 40

    def all_have_data() -> bool:
        use(proxy)
        waiting[:] = [query for query in waiting if not has_data(prometheus, query)]
        return not waiting

    eventually(all_have_data, what=lambda: f"data for {waiting}")


def test_panels_have_ids_places_and_units_of_their_own() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found}
    assert len(places) == len(found)
    for panel in found:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_prometheus_takes_its_configuration() -> None:
    check = subprocess.run(
        ["promtool", "check", "config", str(PROMETHEUS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert check.returncode == 0, check.stderr
    assert "SUCCESS" in check.stdout


def test_scraped_services_are_those_of_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    jobs = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    targets = [job["static_configs"][0]["targets"][0] for job in jobs]
    assert targets == ["api:7000", "proxy:1224"]
    assert {target.partition(":")[0] for target in targets} <= compose["services"].keys()
    assert compose["services"]["proxy"]["environment"]["PROXY_METRICS_HOST"] == "0.0.0.0"


def test_profile_mounts_what_is_there_and_provisions_the_dashboard() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    profiled = [name for name in services if services[name].get("profiles") == ["monitoring"]]
    assert profiled == ["prometheus", "grafana"]
    mounted: dict[str, Path] = {}
    for name in profiled:
        for volume in services[name]["volumes"]:
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (ROOT / source).exists(), volume
                mounted[target] = ROOT / source
            else:
                assert source in compose["volumes"]
    dashboards = yaml.safe_load((PROVISIONING / "dashboards" / "hearth.yaml").read_text())
    assert mounted[dashboards["providers"][0]["options"]["path"]] == DASHBOARD.parent
    assert mounted["/etc/grafana/provisioning"] == PROVISIONING
    sources = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
