"""docs/migrating.md, followed to the letter: its servers, its requests and its manifests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.kit.servers import ROOT
from tests.followed_pages import DOCS, Block, Reader, blocks
from tests.service import running_service

PAGE = DOCS / "migrating.md"
KUBERNETES = ROOT / "deploy" / "kubernetes"
OPTIMIZER, WEIGHTS = "http://127.0.0.1:8080", "http://127.0.0.1:8000"


def answers(text: str) -> list[Any]:
    """The JSON values that requests have printed, one behind the other."""
    decoder, found, rest = json.JSONDecoder(), [], text.lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def follow(shown: str, port_variable: str, folder: Path) -> Iterator[str]:
    """What is printed by the blocks that ask `shown`, of the server that the page starts there."""
    asked = [block for block in blocks(PAGE) if shown in block.text]
    serve = next(block for block in served() if block.text.split()[-1] in SERVERS[shown])
    words = serve.text.split()
    command = words.index("hearth")
    given = dict(word.split("=") for word in words[:command])
    assert f":{given.pop(port_variable, '8080')}" in shown
    arguments = ["scripts.hearth", *words[command + 1 :]]
    with running_service(folder, arguments, port_variable, **given) as (url, _):
        for block in asked:
            yield Reader(folder, {shown: url}).run(block)


SERVERS = {OPTIMIZER: ("-F",), WEIGHTS: ("weights",)}


def served() -> list[Block]:
    return [block for block in blocks(PAGE) if block.mark == "serve"]


@pytest.mark.slow
def test_requests_of_inferno_are_answered(tmp_path: Path) -> None:
    whole, pieces, noticed, gauges = follow(OPTIMIZER, "INFERNO_PORT", tmp_path)
    (solution,) = answers(whole)
    chat = solution["allocations"]["chat"]
    assert (chat["accelerator"], chat["numReplicas"], chat["cost"]) == ("G2", 3, 75)
    capacity, added, optimized, applied, night, removed = answers(pieces)
    assert (capacity["count"], added["name"], applied) == (2, "night", "Done")
    assert optimized["allocations"]["night"]["numReplicas"] == 1
    assert night["currentAlloc"]["numReplicas"] == 1
    assert removed["name"] == "night"
    bare, model, why = answers(noticed)
    assert [each["name"] for each in bare] == ["A100", "G2"]
    assert model == "meta-llama/Llama-3"
    assert {each["accelerator"] for each in why["candidates"]} == {"A100", "G2"}
    for prefix in ("inferno", "wva"):
        found = re.search(rf'{prefix}_desired_replicas{{.*variant_name="chat".*}} (.*)', gauges)
        assert found is not None
        assert float(found[1]) == 3


@pytest.mark.slow
def test_requests_of_exos_weights_api_are_answered(tmp_path: Path) -> None:
    first, later = follow(WEIGHTS, "WEIGHTS_PORT", tmp_path)
    told, proposed = answers(first)
    assert told["message"] == "/weights_update/: SUCCESS, first weights in"
    assert sum(proposed["weights"]) == pytest.approx(1)
    _, session, deleted = answers(later)
    assert session["num_observations"] == 3
    assert session["best"] == {"weights": [0.2, 0.8], "performance_metric": 12.5}
    assert deleted["message"].endswith("SUCCESS, key session_007 deleted")


def shown_manifest(name: str) -> Any:
    found = re.search(rf"^```yaml {name}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return yaml.safe_load(found[1])


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_autoscalers_are_those_of_the_manifests(name: str) -> None:
    manifest = yaml.safe_load((KUBERNETES / name / "chat-cpu-core.yaml").read_text())
    assert shown_manifest(name).items() <= manifest["spec"].items()
