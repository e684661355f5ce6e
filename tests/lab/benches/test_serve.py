"""`make bench-serve` measures a server: here the mock, which takes no time."""

from pathlib import Path

from lab.benches.serve.bench import Workload, measure
from lab.kit.servers import MOCK_APP, served


def test_a_closed_loop_of_users_is_measured(tmp_path: Path) -> None:
    with served(tmp_path / "log", MOCK_APP) as api:
        measured = measure(api, Workload("mock", tmp_path, max_tokens=8, rounds=2), users=3)
    assert measured["tokens_per_s"] > 0
    assert measured["ttft_p50_ms"] > 0
