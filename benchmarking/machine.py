"""Describes the machine that a figure was measured on."""

import os
import platform
import subprocess
from datetime import date
from pathlib import Path

STEAL = 8  # field of the first line of /proc/stat, after its name


def describe_machine(*packages: str) -> str:
    """Returns a line with processor, cores, memory, GPU, Python, `packages`' versions, and date."""
    from importlib.metadata import version  # slow, and not needed by the load process

    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    parts = [
        f"{_processor_name()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB",
        _gpu_name() or "no CUDA device",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
        date.today().isoformat(),
    ]
    return "; ".join(parts)


def stolen_s() -> float | None:
    """Returns the processor time, over all cores, that the host of a virtual machine has given to
    others since boot although this machine had work; None without /proc/stat (proc_stat(5))."""
    try:
        of_all_cores = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
    except OSError:
        return None
    return int(of_all_cores[STEAL]) / os.sysconf("SC_CLK_TCK")


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_name() -> str | None:
    """Returns the first GPU's name, by the driver's tool, because importing torch is slow."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.partition("\n")[0].strip() or None if found.returncode == 0 else None
