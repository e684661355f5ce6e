import mmap
from pathlib import Path

import pytest

from inference_api.loading.hardware import (
    available_memory_bytes,
    physical_cores,
    resident_memory_bytes,
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\nHugePages: 0\n")
    return tmp_path


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (folder / "memory.current").write_text("3000000\n")
    (folder / "memory.stat").write_text("anon 1\nactive_file 1000000\ninactive_file 500000\n")
    return folder


def test_memory_of_the_machine(proc: Path, tmp_path: Path) -> None:
    assert available_memory_bytes(proc, tmp_path / "none") == 5000 * 1024


def test_memory_within_a_containers_limit_counts_its_page_cache_as_free(
    proc: Path, cgroup: Path
) -> None:
    (cgroup / "memory.max").write_text("4000000\n")
    assert available_memory_bytes(proc, cgroup) == 2_500_000


def test_unlimited_container_has_the_machines_memory(proc: Path, cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("max\n")
    assert available_memory_bytes(proc, cgroup) == 5000 * 1024


def test_memory_is_unknown_without_the_kernels_word(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path, tmp_path) is None
    assert resident_memory_bytes(tmp_path) is None


def test_a_processs_own_memory_is_counted_in_pages(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("900 7 3 1 0 5 0\n")
    assert resident_memory_bytes(tmp_path) == 7 * mmap.PAGESIZE


def test_hyper_threads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu in range(4):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert physical_cores(tmp_path, tmp_path) == 2


def test_cores_without_topology_count_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert physical_cores(tmp_path, tmp_path) == 3


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 3), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1),
     ("900000 100000", 3), ("1 0", 3), ("", 3), ("-1", 3)],
)  # fmt: skip
def test_a_quota_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    (tmp_path / "cpu.max").write_text(quota)
    assert physical_cores(tmp_path, tmp_path) == cores
