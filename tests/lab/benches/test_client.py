"""`make bench-client`'s checks run. How well the client keeps time is for them to say."""

import pytest

from lab.benches.serve.client import many_streams, stall


def test_500_streams_at_once_arrive_whole() -> None:
    assert many_streams(streams=500, tokens_per_s=5.0, seconds=2.0)


def test_a_stall_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    stall(qps=20.0, seconds=1.0, stall_s=0.5)
    assert "20 requests/s for 1 s, nothing answered for 0.5 s" in capsys.readouterr().out
