"""How many cores may this process use? What its affinity and the CPU limits of its container leave."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cores(root: Path = Path("/")) -> float:
    """The cores that this process may use; a container may have a part of the machine's time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(allowed), *_quotas(root)])


def _quotas(root: Path) -> Iterator[float]:
    """The CPU limits, in cores, of this process's control groups and of those above, in versions 1 and 2."""
    for line in _read(root / "proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for mounted in ("", "unified", "cpu", "cpu,cpuacct") if controllers in ("", "cpu", "cpu,cpuacct") else ():
            top = root / "sys/fs/cgroup" / mounted
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(top):
                    yield _quota(folder)


def _quota(folder: Path) -> float:
    words = _read(folder / "cpu.max").split()
    words = words or [*_read(folder / "cpu.cfs_quota_us").split(), *_read(folder / "cpu.cfs_period_us").split()]
    if len(words) != 2 or words[0] in ("max", "-1"):
        return math.inf
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
