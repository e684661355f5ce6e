"""Ray that is missing or cannot be reached; the rest is in the contract."""

import sys

import pytest

from cluster.actuators.ray_actors import RayMachines
from cluster.errors import ActuatorUnusable


def test_missing_ray_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ActuatorUnusable, match=r"pip install 'hearth\[cluster\]'"):
        RayMachines()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:port", ":", "[::1]:1"])
def test_ray_that_is_not_there_is_told_at_once(address: str) -> None:
    with pytest.raises(ActuatorUnusable, match="cannot be reached"):
        RayMachines(address)
