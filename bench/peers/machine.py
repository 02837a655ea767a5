"""The machine a result was measured on, and what processes hold there."""

import multiprocessing
import os
import platform
import statistics
import time
from pathlib import Path


def _field(path, key):
    with open(path) as file:
        for line in file:
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return ""


def memory_bytes():
    return int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024


def resident_bytes(pid):
    return int(_field(f"/proc/{pid}/status", "VmRSS").split()[0]) * 1024


def describe():
    huge_pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    return (f"{_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} CPUs, {memory_bytes() / 2**30:.0f} GB, Linux {platform.release()}, "
            f"transparent huge pages {huge_pages.split('[')[1].split(']')[0]}")


SPIN_S = 1.0
SPIN_ROUNDS = 5


def _spin(_):
    """How far counting gets."""
    count, end = 0, time.perf_counter() + SPIN_S
    while time.perf_counter() < end:
        for _ in range(1000):
            count += 1
    return count


def scaling(processes):
    """How many times as far so many processes get as one, that do nothing but count: what virtual processors are worth together."""
    with multiprocessing.Pool(processes) as pool:
        ratios = [sum(pool.map(_spin, range(processes), chunksize=1)) / pool.apply(_spin, [0]) for _ in range(SPIN_ROUNDS)]
    return statistics.median(ratios)
