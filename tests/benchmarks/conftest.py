"""Lets tests import the parts of the benchmarks, as the benchmarks themselves do, and run these in this process."""

import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a benchmark with options, and gives what it printed."""

    def printed(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *options])
        with suppress(SystemExit):  # of --help; where options are wrong nothing is printed
            runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capsys.readouterr().out

    return printed
