"""One table in Markdown, with the machine, the versions and the day above it."""

import os
import platform
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

VERSIONS = ("torch", "numpy", "pyarrow", "tokenizers", "datasets", "transformers")


class Row(NamedTuple):
    """A line of the table."""

    what: str
    ours: str
    other: str = ""


def both(first: str, second: str) -> str:
    """The peer's two stages in one cell."""
    return f"{first} / {second}"


def heading(title: str) -> str:
    """Where and when it was measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    cores = len(os.sched_getaffinity(0))
    return (
        f"### {title}\n\n{date.today()}, {_processor()}, {cores} cores, Python {platform.python_version()}, {versions}."
    )


def table(rows: Iterable[Row], other: str) -> str:
    """The rows below the names of the two sides."""
    lines = [f"| {row.what} | {row.ours} | {row.other} |" for row in rows]
    return "\n".join([f"| | minibert | {other} |", "|---|---:|---:|", *lines])


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
