"""One table in Markdown, with the machine, the versions and the day above it."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

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
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS if find_spec(name))
    machine = ", ".join([_processor(), f"{len(os.sched_getaffinity(0))} cores", *_gpu()])
    return f"### {title}\n\n{date.today()}, {machine}, Python {platform.python_version()}, {versions}."


def table(rows: Iterable[Row], other: str) -> str:
    """The rows below the names of the two sides."""
    return "\n".join(lines(("", "minibert", other), rows))


def lines(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of any columns, line by line; the first column says what the others are about."""
    yield f"| {' | '.join(names)} |"
    yield "|---|" + "---:|" * (len(names) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _gpu() -> list[str]:
    return [torch.cuda.get_device_name()] if torch.cuda.is_available() else []


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
