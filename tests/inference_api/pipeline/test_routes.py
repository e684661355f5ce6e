"""A real server over two ranks, whose split an operator or the weights driver changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
from werkzeug.serving import make_server

from inference_api.core import decode_backend
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.inference_api_server import create_server, server_of
from inference_api.pipeline import pauses, routes
from inference_api.settings import Settings
from lab.kit.servers import eventually
from optimizer.settings import Settings as OptimizerSettings
from tests.inference_api.pipeline.rings import start_ranks
from tests.ports import free_port
from tests.weights.memory_store import MemoryStore
from weights.drivers.http import Http
from weights.drivers.loop import Search, drive
from weights.drivers.pipeline import PipelineDriver
from weights.errors import TrialFailed
from weights.samplers import SAMPLERS
from weights.service import WeightsService
from weights.settings import Settings as WeightsSettings

QUESTION = {"model": "hearth-tiny", "prompt": "Once upon a time", "temperature": 0.8, "seed": 3}


def app_of(folder: Path, **settings: Any) -> Any:
    own = Settings.model_validate(settings)
    return create_server(own, OptimizerSettings(), WeightsSettings(db_path=folder / "w.db"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "QUIET_S", 0.0)
        patch.setattr(decode_backend, "IDLE_WAIT_S", 0.02)
        patch.setattr(routes, "MEASURE_S", 0.1)
        for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("MASTER_PORT", port)):
            patch.setenv(name, str(value))
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        app = app_of(tmp_path_factory.mktemp("split"), split="auto", user_rows=4, max_seq_len=256)
        settings = server_of(app).backend.settings
        start_ranks(settings.default_model, port, num_ranks=2)
        http = make_server("127.0.0.1", 0, app, threaded=True)
        serving = Thread(target=http.serve_forever, name="http")
        serving.start()
        server_of(app).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        serving.join()
        http.server_close()
        server_of(app).stop()


def answer(url: str) -> str:
    response = requests.post(f"{url}/v1/completions", json=QUESTION | {"max_tokens": 24})
    response.raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text


def test_the_driver_finds_a_split_and_no_answer_changes(url: str) -> None:
    eventually(lambda: requests.get(f"{url}/ready").ok)
    before = answer(url)
    told: list[str] = []
    service = WeightsService(MemoryStore(), SAMPLERS["adaptive"])
    driver = PipelineDriver(Http(url), 60.0)
    assert driver.ring.nodes == ("rank 0", "rank 1")
    found = drive(driver, Search(service, "s", driver.ring), 5, told.append)
    *trials, result = map(json.loads, told)
    assert all(sum(each["layers"]) == 5 and each["tokens_per_s"] > 0 for each in trials)
    assert tuple(result["best"].values()) == found
    assert result["setting"] == f"SPLIT={found[0]},{found[1]}"
    assert requests.post(f"{url}/pipeline/measure").json()["layers"] == list(found)
    assert answer(url) == before
    for layers in ([4, 1], [1, 4], [1, 4]):
        moved = requests.post(f"{url}/pipeline/split", json={"layers": layers})
        assert (moved.status_code, moved.json()) == (200, {"layers": layers})
        assert answer(url) == before


def test_layers_without_memory_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = requests.post(f"{url}/pipeline/measure").json()["layers"]
    monkeypatch.setattr(KernelRunner, "free_bytes", lambda self: 0)
    moved = requests.post(f"{url}/pipeline/split", json={"layers": layers[::-1]})
    assert moved.status_code == 400
    assert "more than the memory of a rank" in moved.text
    assert requests.post(f"{url}/pipeline/measure").json()["layers"] == layers


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"layers": [2, 2]}, "SPLIT=2,2 has 4 layers, but the model has 5"),
        ({"layers": [1, 1, 3]}, "is for 3 ranks, but 2 were started"),
        ({"layers": [0, 5]}, "layers"),
        ({"layers": [5]}, "layers"),
        ({"layers": [1.5, 3.5]}, "layers"),
        ({"layers": [2, 3], "rank": 0}, "rank"),
        ({}, "layers"),
    ],
    ids=str,
)
def test_what_is_no_split_of_the_model_is_refused(url: str, body: object, reason: str) -> None:
    refused = requests.post(f"{url}/pipeline/split", json=body)
    assert refused.status_code == 400
    assert reason in refused.json()["error"]["message"]
    with pytest.raises(TrialFailed, match="400"):
        PipelineDriver(Http(url), 60.0).measure((2, 2))


def test_without_a_pause_the_driver_gives_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "QUIET_S", 1e9)
    monkeypatch.setattr(pauses, "MAX_WAIT_S", 0.0)
    answer(url)
    with pytest.raises(TrialFailed, match=r"503 .*no pause between"):
        PipelineDriver(Http(url), 0.0).measure((2, 3))


def test_a_server_of_one_process_has_no_split(tmp_path: Path) -> None:
    client = app_of(tmp_path).test_client()
    assert client.post("/pipeline/measure").status_code == 404
