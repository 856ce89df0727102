"""What the system gives this process: processors, memory, the CPU's name."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from bringup.errors import BringupError

#: The number of threads, this process's calling thread included.
THREADS_VARIABLE = "BRINGUP_THREADS"

_CGROUPS = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def threads(most: int) -> int:
    """How many threads to use, 1 to ``most``.

    That is ``BRINGUP_THREADS``, or the number of CPUs this process may run on.  A control group's
    quota of CPU time counts as that many CPUs, rounded up.
    Raises BringupError if the variable is not a positive integer.
    """
    text = os.environ.get(THREADS_VARIABLE, "")
    if text:  # pragma: no cover - only with the variable set
        if not text.isdecimal() or int(text) < 1:
            raise BringupError(
                f"{THREADS_VARIABLE}={text!r} is not a positive integer",
                fix=f"set {THREADS_VARIABLE} to the number of threads, or unset it",
            )
        return min(int(text), most)
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(count, math.ceil(min(cpu_quota(), most))))


def cpu_quota(root: Path = _CGROUPS, membership: Path = _SELF) -> float:
    """CPUs' worth of time that control groups grant, or infinity."""
    quota = math.inf
    for folder in _groups(root, membership, "cpu"):
        unified = _words(f"{folder}/cpu.max")
        if len(unified) == 2 and unified[0] != "max":  # pragma: no cover - only with a quota
            quota = min(quota, int(unified[0]) / int(unified[1]))
        limit, period = _words(f"{folder}/cpu.cfs_quota_us"), _words(f"{folder}/cpu.cfs_period_us")
        if limit and period and int(limit[0]) > 0:  # pragma: no cover - only with a quota
            quota = min(quota, int(limit[0]) / int(period[0]))
    return quota


def memory(root: Path = _CGROUPS, membership: Path = _SELF) -> int:
    """Bytes of memory this process may have: the machine's, or less by a control group's limit."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _groups(root, membership, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(f"{folder}/{name}")
            if words and words[0].isdecimal():
                size = min(size, int(words[0]))
    return size


def core_cache(folder: Path = _CACHES, default: int = 1 << 20) -> int:
    """Bytes of the second-level cache, where the system tells."""
    for cache in sorted(folder.glob("index*")):
        level, size = _words(cache / "level"), _words(cache / "size")
        if level == ["2"] and size and size[0][:-1].isdecimal() and size[0][-1] == "K":
            return int(size[0][:-1]) << 10
    return default  # pragma: no cover - only systems that do not tell


def _groups(root: Path, membership: Path, controller: str) -> Iterator[str]:
    """The folders of this process's control groups and of their ancestors, either version."""
    for line in _lines(membership):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base = str(root)
        elif controller in controllers.split(","):
            base = f"{root}/{controller}"
        else:
            continue
        # Inside a container the path is the host's; then the root is what applies.
        names = path.strip("/").split("/") if path.strip("/") else []
        for count in range(len(names), -1, -1):
            yield "/".join([base, *names[:count]])


def _lines(path: str | Path) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str | Path) -> list[str]:
    return " ".join(_lines(path)).split()


def product() -> str:
    """The CPU's name for people."""
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()  # pragma: no cover - only silent systems
