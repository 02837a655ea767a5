"""The machine a result was measured on, and what processes hold there."""

import os
import platform
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
