"""Two servers' answers compared: mocks that differ in a setting, and one with itself."""

import random
from itertools import islice
from pathlib import Path

import pytest

from lab import replay
from lab.kit.servers import served


def test_a_seed_draws_the_same_requests() -> None:
    first, second = (list(islice(replay.drawn(random.Random(7)), 50)) for _ in range(2))
    assert first == second
    assert len({each.path for each in first}) > 10


def test_only_what_differs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        served(tmp_path / "old", MOCK_MODEL=1) as old,
        served(tmp_path / "new", MOCK_MODEL=1, UNKNOWN_FIELDS="refuse") as new,
    ):
        assert replay.main([old.url, old.url, "--requests", "80"]) == 0
        assert "80 requests, 0 answers differ" in capsys.readouterr().out
        assert replay.main([old.url, new.url, "--requests", "80"]) == 1
    assert "new (400" in capsys.readouterr().out
