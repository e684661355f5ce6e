"""What docs/weights.md says is what the program does."""

import json
import re
from pathlib import Path
from typing import get_args

from tests.weights.support import UPDATE, new_client, update
from weights.samplers import SamplerName
from weights.schema import GenerateBody, PartitionBody, UpdateBody
from weights.settings import Settings

DOCS = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()


def test_every_setting_is_documented_with_its_default() -> None:
    for field in Settings.model_fields.values():
        row = re.search(rf"^\| `{field.validation_alias}` \|(.*?)\|", DOCS, re.MULTILINE)
        assert row is not None, field.validation_alias
        if field.validation_alias != "WEIGHTS_MAX_BODY_BYTES":
            assert row[1].strip(" `") == str(field.default or "")
    for name in get_args(SamplerName):
        assert f"`{name}`" in DOCS


def test_every_field_and_route_is_documented() -> None:
    for body in (UpdateBody, GenerateBody, PartitionBody):
        for field in body.model_fields:
            assert f"`{field}`" in DOCS
    for rule in new_client().application.url_map.iter_rules():
        path = rule.rule.replace("<session:session_id>", "<id>")
        for verb in (rule.methods or set()) & {"GET", "POST", "DELETE"}:
            assert path.startswith(("/health", "/docs/")) or f"`{verb} {path}`" in DOCS


def test_partition_is_answered_as_shown() -> None:
    found = re.search(r"```json partition\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    shown = json.loads(found[1])
    client = new_client()
    client.post(UPDATE, json=update([12 / 32, 10 / 32, 10 / 32], 1.0))
    answer = client.post("/weights/sessions/s/partition", json={"num_layers": 32}).get_json()
    assert answer["layers"] == shown["layers"]
    assert shown["engines"].items() <= answer["engines"].items()
