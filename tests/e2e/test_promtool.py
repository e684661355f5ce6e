"""Prometheus' own tools about what the API and the proxy publish."""

import subprocess
from pathlib import Path

import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi
from tests.forked import served
from tests.proxy.support import bearer, running_proxy


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    assert mock_api.post(text="something to count").status_code == 200
    assert mock_api.post().status_code == 400
    return mock_api


def complaints(metrics: str) -> list[str]:
    """What `promtool check metrics` says; it says nothing of metrics in good style."""
    check = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = (check.stdout + check.stderr).splitlines()
    assert bool(lines) == bool(check.returncode)
    return lines


def test_own_metrics_are_in_good_style(api: ServedApi) -> None:
    metrics = requests.get(f"{api.url}/metrics", timeout=TIMEOUT_S).text
    own = [line for line in metrics.splitlines(keepends=True) if "vllm:" not in line]
    assert complaints("".join(own)) == []


def test_of_vllms_names_only_the_colon_is_odd(api: ServedApi) -> None:
    said = complaints(requests.get(f"{api.url}/metrics", timeout=TIMEOUT_S).text)
    assert said
    for line in said:
        assert line.startswith("vllm:")
        assert line.endswith("metric names should not contain ':'")


def test_without_vllms_names_the_whole_scrape_is_clean(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP, VLLM_METRICS="false") as api:
        assert api.post(text="something to count").status_code == 200
        assert complaints(requests.get(f"{api.url}/metrics", timeout=TIMEOUT_S).text) == []


def test_the_proxys_metrics_are_in_good_style(api: ServedApi, tmp_path: Path) -> None:
    with running_proxy(tmp_path, api.url) as proxy:
        body = {"text": "through the proxy"}
        url = f"{proxy.url}/inference"
        assert requests.post(url, json=body, headers=bearer(), timeout=TIMEOUT_S).status_code == 200
        assert complaints(proxy.metric("/metrics")) == []
