"""The example for Ray's cluster launcher is one that it takes."""

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from benchmarking.serving import ROOT


def test_the_example_is_valid_and_gives_away_what_is_there() -> None:
    text = (ROOT / "deploy" / "ray" / "cluster.example.yaml").read_text()
    validate_config(prepare_config(yaml.safe_load(text)))
    mounts = yaml.safe_load(text)["file_mounts"]
    assert (ROOT / mounts["~/requirements-cluster.txt"]).is_file()
