"""Every field of every family's config.json: left out, and with junk in it."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import transformers

from inference_api.errors import StartupError
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.read import read_config
from inference_api.loading.layout import weight_plan
from tests.inference_api.engine.tiny_models import GEMMAS, HYBRIDS, MODELS

EVERY = MODELS | HYBRIDS | GEMMAS
Raw = dict[str, Any]
Path = tuple[str, ...]
JUNK: list[Any] = [
    *(None, "x", True, -1, 0, 0.5, 3, 2**20, 2**40, 10**400, 1e300, math.nan, math.inf),
    *([], [[]], ["x"], [None] * 4, [1] * 4, {}, {"x": {}}),
    {"rope_type": "yarn", "rope_theta": 0.5, "factor": 1e12},
    {"full_attention": 3, "sliding_attention": {"rope_type": "yarn", "mscale": "x"}},
]


@cache
def described(name: str) -> str:
    family, values = EVERY[name]
    config = getattr(transformers, f"{family}Config")(**deepcopy(values))
    return json.dumps(config.to_dict(), default=str)


ONE_EACH = list({json.loads(described(name))["model_type"]: name for name in EVERY}.values())


def places(raw: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for key, value in raw.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def holder(raw: Raw, place: Path) -> Raw:
    """The object that a field is in."""
    for key in place[:-1]:
        raw = raw[key]
    return raw


def read(raw: Raw) -> ModelConfig | None:
    """None if it is refused."""
    with suppress(StartupError):
        return read_config(raw)
    return None


@pytest.mark.parametrize("name", ONE_EACH)
def test_what_a_file_leaves_out_is_what_transformers_makes_of_it(name: str) -> None:
    """Or it is refused, as `vocab_size` is. Files without EOS are another matter; Gemma 4's lack
    the kind of a rope that transformers calls default then, although its models have another."""
    raw = json.loads(described(name))
    family = transformers.CONFIG_MAPPING[raw["model_type"]]
    differing = []
    for place in places(raw):
        if place in (("model_type",), ("eos_token_id",)) or place[-1] == "rope_type":
            continue
        less = json.loads(described(name))
        del holder(less, place)[place[-1]]
        config = read(less)
        if config is None:
            continue
        try:
            known = family(**{key: value for key, value in less.items() if key != "model_type"})
        except Exception:  # whatever a class has against it
            continue
        if config != read(json.loads(json.dumps(known.to_dict(), default=str))):
            differing.append(place)
    assert not differing


@pytest.mark.parametrize("name", ONE_EACH)
def test_junk_is_a_fault_or_harmless(name: str) -> None:
    """A third of it for each field; the fields of another family get another third."""
    for number, place in enumerate(places(json.loads(described(name)))):
        for junk in JUNK[number % 3 :: 3]:
            raw = json.loads(described(name))
            holder(raw, place)[place[-1]] = junk
            config = read(raw)
            if config is not None:
                assert len(config.windows) == len(config.ropes) == config.num_layers
                if isinstance(junk, int) and junk > 3:
                    assert weight_plan(config)
