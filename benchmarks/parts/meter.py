"""How long does a command take, and how much memory and disk at the highest? Looked at five times a second."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import psutil

EVERY = 0.2
"""Seconds from one look to the next."""


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    seconds: float
    memory: int
    """Bytes at the highest, over all its processes; what they share is counted once."""
    own_memory: int
    """The same without pages of files, which the system may take back."""
    disk: int
    """Bytes in the folder at the highest."""
    left: int
    """Bytes in the folder at the end."""


def measure(command: Sequence[str], folder: Path, *, cores: int) -> Measured:
    """Run a command on some cores; `folder` is where it works, and where it finds its places for temporary files.

    Raises:
        RuntimeError: the command failed; the message is the end of what it said.
    """
    (folder / "temporary").mkdir(parents=True, exist_ok=True)
    places = {"TMPDIR": str(folder / "temporary"), "HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1"}
    with TemporaryFile() as said:
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | places) as process:
            psutil.Process(process.pid).cpu_affinity(sorted(os.sched_getaffinity(0))[:cores])
            looks = [_look(process.pid, folder)]
            while _is_running(process):
                looks.append(_look(process.pid, folder))
        seconds = time.perf_counter() - start
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {said.read()[-3000:].decode('utf-8', 'replace')}")
    memory, own, disk = (max(values) for values in zip(*looks, strict=True))
    return Measured(seconds, memory, own, disk, disk_of(folder))


def memory_of(process: int) -> tuple[int, int]:
    """The proportional set size of a process in bytes, and that part of it which no file backs; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").split("\n")
    except OSError:
        return 0, 0
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines[1:]) if rest}
    return sizes.get("Pss", 0), sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)


def disk_of(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk."""
    total = 0
    for directory, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(Path(directory) / file).st_blocks * 512
            except FileNotFoundError:  # it was removed just now
                continue
    return total


def _look(process: int, folder: Path) -> tuple[int, int, int]:
    try:
        family = [process, *(child.pid for child in psutil.Process(process).children(recursive=True))]
    except psutil.NoSuchProcess:
        family = []
    memory, own = (sum(sizes) for sizes in zip((0, 0), *map(memory_of, family), strict=True))
    return memory, own, disk_of(folder)


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(EVERY)
    except subprocess.TimeoutExpired:
        return True
    return False
