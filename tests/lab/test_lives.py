"""A few requests at once at a server of little memory."""

import pytest

from lab import lives
from tests.forked import served


def test_a_few_at_once_are_told_what_each_is_told_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "served", served)
    monkeypatch.setattr(lives, "MOST_TOKENS", 400)
    assert lives.main(["--requests", "15", "USER_ROWS=4", "KV_CACHE_MEMORY=200KiB"]) == 0
    assert "12 answered, 0 of them otherwise than alone, 3 left" in capsys.readouterr().out
