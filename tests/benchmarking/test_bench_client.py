"""`make bench-client`'s checks run, and see what they are there to see."""

from benchmarking.benches.client import many_streams, stall


def test_500_streams_at_once_arrive_whole() -> None:
    assert many_streams(streams=500, tokens_per_s=5.0, seconds=2.0)


def test_no_request_hides_a_stall() -> None:
    assert stall(qps=20.0, seconds=4.0, stall_s=1.0)
