"""Free memory, cores and GPUs of this machine."""

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
CUDA_PROBE = "import torch; print(torch.cuda.is_available())"
PROBE_TIMEOUT_S = 60.0


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Returns the memory left to a process, within its container's limit; None if not known."""
    available_kb = _table(proc / "meminfo").get("MemAvailable")
    if available_kb is None:
        return None
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return available_kb * 1024
    usage = _table(cgroup / "memory.stat")
    page_cache = usage.get("active_file", 0) + usage.get("inactive_file", 0)  # freed on demand
    return max(0, min(available_kb * 1024, limit - used + page_cache))


def resident_memory_bytes(proc: Path = PROC) -> int | None:
    """Returns the resident memory of this process; None if it is not known."""
    counts = _contents(proc / "self" / "statm").split()
    return int(counts[1]) * mmap.PAGESIZE if counts else None


def physical_cores(cpus: Path = CPUS, cgroup: Path = CGROUP) -> int:
    """Returns the cores that this process may run on. Hyper-threads count once, because matrix
    products gain nothing from them.

    A container's CPU quota bounds the number: threads beyond it would be stopped in the middle of a
    step, and the others would wait for them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = {  # the same for all hyper-threads of a core
        _contents(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        for cpu in os.sched_getaffinity(0)
    }
    return max(1, min(len(siblings), _quota_cores(cgroup) or len(siblings)))


def has_nvidia_driver() -> bool:
    """Returns whether there may be a GPU. Only torch can tell for sure."""
    return NVIDIA_CONTROL.exists()


def has_torch() -> bool:
    return find_spec("torch") is not None


def may_be_on_cuda(device: str) -> bool:
    """Returns whether a model may run on a GPU if DEVICE is `device`, as far as is known without
    loading torch."""
    return device == "cuda" or (device == "auto" and has_nvidia_driver() and has_torch())


def cuda_faults() -> list[str]:
    """Returns why DEVICE=cuda is not possible.

    Asks torch in a separate process, because that takes seconds and a process must not fork after
    it. If that process fails, the runner will report the fault.
    """
    if not has_torch():
        return [NO_TORCH]
    try:
        command = [sys.executable, "-c", CUDA_PROBE]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [NO_CUDA] if answer.stdout.strip() == "False" else []


def _quota_cores(cgroup: Path) -> int | None:
    """Returns the whole cores of a container's CPU quota; None without a quota."""
    try:
        quota, period = _contents(cgroup / "cpu.max").split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (ValueError, ZeroDivisionError):
        return None


def _table(path: Path) -> dict[str, int]:
    """Returns the lines `name[:] number …` of a kernel file; empty without such a file."""
    lines = [line.split() for line in _contents(path).splitlines()]
    return {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1}


def _number(path: Path) -> int | None:
    text = _contents(path).strip()
    return int(text) if text.isdigit() else None  # a group without a limit says "max"


def _contents(path: Path) -> str:
    """Returns the contents of a kernel file; empty without such a file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
