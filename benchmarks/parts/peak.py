"""How much more memory than before does a piece of work need at its highest, in this process or on its GPU?"""

from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def peak_memory(work: Callable[[], object], device: str) -> int:
    """Bytes; on the CPU with what the work leaves behind, such as an optimizer's state after its first step."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    _RESET.write_text("5", encoding="utf-8")  # the highest is the present, from now on
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").split("\n")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
