"""What a figure was measured on. A figure without it says nothing."""

import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path


def describe_machine(*packages: str) -> str:
    """One line: processor, cores, memory, Python, the versions of `packages`, and the date."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    parts = [
        f"{_processor_name()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
        date.today().isoformat(),
    ]
    return "; ".join(parts)


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
