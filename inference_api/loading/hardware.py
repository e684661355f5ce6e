"""This machine's free memory and its cores that compute."""

import mmap
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
NVIDIA_CONTROL = Path("/dev/nvidiactl")

NO_CUDA = (
    "DEVICE=cuda, but torch finds no CUDA device; set DEVICE=cpu, or check the driver and that "
    "torch is built for CUDA."
)
INSTALL_TORCH = "pip install 'hearth[cuda]'"
NO_TORCH = f"DEVICE=cuda, but torch is not installed; {INSTALL_TORCH}, or set DEVICE=cpu."
ASK_TORCH = "import torch; print(torch.cuda.is_available())"
ASK_TIMEOUT_S = 60.0


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Memory a process can still take, within its container's limit; None when not known."""
    available_kb = _table(proc / "meminfo").get("MemAvailable")
    if available_kb is None:
        return None
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return available_kb * 1024
    usage = _table(cgroup / "memory.stat")
    page_cache = usage.get("active_file", 0) + usage.get("inactive_file", 0)  # given back on demand
    return max(0, min(available_kb * 1024, limit - used + page_cache))


def resident_memory_bytes(proc: Path = PROC) -> int | None:
    """Memory this process has; None when not known."""
    try:
        _, resident_pages, *_ = (proc / "self" / "statm").read_text().split()
    except OSError:
        return None
    return int(resident_pages) * mmap.PAGESIZE


def physical_cores(cpus: Path = CPUS, cgroup: Path = CGROUP) -> int:
    """Cores this process may run on, hyper-threads counted once: matmuls gain nothing from them.

    No more than its container's quota pays for: threads beyond it would be stopped in mid-step,
    and the others would wait for them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = len({_core_of(cpu, cpus) for cpu in os.sched_getaffinity(0)})
    return max(1, min(cores, _quota_cores(cgroup) or cores))


def has_nvidia_driver() -> bool:
    """Whether CUDA may be there; only torch can tell for sure."""
    return NVIDIA_CONTROL.exists()


def has_torch() -> bool:
    return find_spec("torch") is not None


def may_have_cuda() -> bool:
    """Whether a model may be on a GPU, as far as can be known without torch."""
    return has_nvidia_driver() and has_torch()


def cuda_faults() -> list[str]:
    """Why DEVICE=cuda cannot be. Asks torch in a process of its own: it takes seconds, and no
    process that has asked may fork. Where it says nothing, the runner will."""
    if not has_torch():
        return [NO_TORCH]
    try:
        command = [sys.executable, "-c", ASK_TORCH]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [NO_CUDA] if answer.stdout.strip() == "False" else []


def _quota_cores(cgroup: Path) -> int | None:
    """Whole cores of a container's CPU quota; None where it has none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _core_of(cpu: int, cpus: Path) -> str:
    """A name shared by the hyper-threads of one core."""
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _table(path: Path) -> dict[str, int]:
    """The lines `name[:] number …` of a kernel file; empty when there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # a group without a limit says "max"
