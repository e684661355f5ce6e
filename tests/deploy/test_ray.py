"""The example for Ray's cluster launcher is one that it takes."""

import re
import tomllib

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from lab.kit.servers import ROOT


def test_the_example_is_valid_and_gives_away_what_is_there() -> None:
    text = (ROOT / "deploy" / "ray" / "cluster.example.yaml").read_text()
    validate_config(prepare_config(yaml.safe_load(text)))
    (extras,) = re.findall(r"\.whl\)\[(.+)\]", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hooks = project["tool"]["hatch"]["metadata"]["hooks"]
    assert {*extras.split(",")} <= hooks["requirements_txt"]["optional-dependencies"].keys()
