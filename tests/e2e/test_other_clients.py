"""What clients other than OpenAI's for Python send, on the embedded model.

The bodies were recorded from runs of those clients; each says which, and its version.
"""

import json
from typing import Any

import pytest
import requests

from lab.kit.servers import ROOT, TIMEOUT_S, ServedApi

RECORDED = json.loads((ROOT / "tests" / "data" / "openai_clients.json").read_text())


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


@pytest.mark.parametrize("sent", RECORDED, ids=lambda sent: sent["client"])
def test_recorded_bodies_are_answered(api: ServedApi, sent: dict[str, Any]) -> None:
    response = api.post(sent["path"], **sent["body"])
    assert response.status_code == 200, response.text


def test_remote_tokenizer_of_lm_eval_finds_what_it_needs(api: ServedApi) -> None:
    info = requests.get(f"{api.url}/tokenizer_info", timeout=TIMEOUT_S).json()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert "add_generation_prompt" in info["chat_template"]
    (end_id,) = api.post("/tokenize", prompt="</s>", add_special_tokens=False).json()["tokens"]
    assert api.post("/detokenize", tokens=[end_id]).json() == {"prompt": "</s>"}
    asked = {"prompt": "hi", "return_token_strs": True}
    assert api.post("/tokenize", **asked).json()["token_strs"][0] == "<s>"


def test_vllms_routes_for_probes_are_at_the_root(api: ServedApi) -> None:
    assert list(requests.get(f"{api.url}/version", timeout=TIMEOUT_S).json()) == ["version"]
    for verb in ("GET", "POST"):
        assert requests.request(verb, f"{api.url}/ping", timeout=TIMEOUT_S).text == "OK"


def test_aliases_have_the_falcon_servers_bounds_and_other_names_are_greedy_at_0(
    api: ServedApi,
) -> None:
    for name, status in (("falcon40b", 400), ("hearth-tiny", 200)):
        for route in ("inference", "predictions", "chat"):
            path = f"/{route}/{name}"
            assert api.post(path, text="a", temperature="0", max_tokens=2).status_code == status
