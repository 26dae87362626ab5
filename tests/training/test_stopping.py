"""A signal to any process lets all end at the same step; nothing is broken off."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from accelerate import Accelerator

from minibert.training import launch, stopping
from minibert.training.stopping import StopRequests, agree

CONFIGS = processes.ROOT / "configs" / "accelerate"

SCRIPT = """
import sys, time
from pathlib import Path
from minibert.training import launch
from minibert.training.stopping import StopRequests
from minibert.training.trackers import TrackingSettings

folder = Path(sys.argv[1])
accelerator = launch.start("no", TrackingSettings(), folder)
with StopRequests() as stop:
    for step in range(10_000):
        (folder / f"begun-{accelerator.process_index}").touch()
        time.sleep(0.01)
        if stop.agreed(accelerator):
            break
time.sleep(0.5)
(folder / f"saved-{accelerator.process_index}").write_text(str(step), encoding="utf-8")
accelerator.end_training()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def handlers() -> Iterator[list[Any]]:
    """What is called for the signals before a test, and is to be called after it."""
    before = [signal.signal(number, lambda *_: None) for number in stopping.SIGNALS]
    yield [signal.getsignal(number) for number in stopping.SIGNALS]
    for number, handler in zip(stopping.SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_a_signal_is_noted_and_the_old_handlers_come_back(one_process: None, handlers: list[Any]) -> None:
    accelerator = Accelerator(cpu=True)
    with StopRequests() as stop:
        assert not stop.agreed(accelerator)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop.agreed(accelerator)
        assert stop.received == "SIGUSR1"
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == handlers
    with pytest.raises(ZeroDivisionError), StopRequests():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == handlers


def test_ctrl_c_still_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequests():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("launched", "stops"), [(True, True), (False, False)])
def test_the_end_of_the_launcher_is_a_request_and_that_of_a_shell_is_not(
    one_process: None, monkeypatch: pytest.MonkeyPatch, launched: bool, stops: bool
) -> None:
    monkeypatch.setattr(launch, "is_launched", lambda: launched)
    with StopRequests() as stop:
        accelerator = Accelerator(cpu=True)
        assert not stop.agreed(accelerator)
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert stop.agreed(accelerator) == stops
        assert stop.received == ("the end of the launcher" if stops else None)


def test_all_processes_agree_that_one_wants_to_stop_and_on_the_clock_of_the_first(tmp_path: Path) -> None:
    ended = processes.call_all(_agree, str(tmp_path), said=tmp_path / "said", world=3)
    assert [process.code for process in ended] == [0, 0, 0], ended
    for rank in range(3):
        told = json.loads((tmp_path / f"{rank}.json").read_text("utf-8"))
        assert told == [[True, 11.1], [False, 1e9 + 1e-6]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_process_ends_both_at_the_same_step(
    script: Path, tmp_path: Path, number: signal.Signals
) -> None:
    both = processes.start_all(script, tmp_path, said=tmp_path / "said", world=2)
    for rank, process in enumerate(both):
        processes.wait_until((tmp_path / f"begun-{rank}").exists, process)
    assert both[1].process.pid is not None
    os.kill(both[1].process.pid, number)
    assert [process.wait(60).code for process in both] == [0, 0]
    assert (tmp_path / "saved-0").read_bytes() == (tmp_path / "saved-1").read_bytes() != b"9999"


@pytest.mark.slow
@pytest.mark.parametrize(("config", "world"), [("one-process", 1), ("two-processes-cpu", 2)])
def test_a_launcher_that_is_told_to_end_lets_its_processes_save(
    script: Path, tmp_path: Path, config: str, world: int
) -> None:
    command = [sys.executable, "-m", "accelerate.commands.launch", f"--config_file={CONFIGS / config}.yaml"]
    launched = subprocess.Popen([*command, "--main_process_port=0", str(script), str(tmp_path)])
    _wait_for(tmp_path, "begun", world)
    launched.terminate()
    assert launched.wait(60) != 0  # the launcher's own way; what counts is what its processes did
    _wait_for(tmp_path, "saved", world)
    assert len({(tmp_path / f"saved-{rank}").read_bytes() for rank in range(world)}) == 1


def _wait_for(folder: Path, name: str, world: int) -> None:
    end = time.monotonic() + 60
    while not all((folder / f"{name}-{rank}").exists() for rank in range(world)):
        assert time.monotonic() < end, f"{name} never came to pass"
        time.sleep(0.05)


def _agree(folder: str) -> None:
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    told = [agree(accelerator, rank == 2, 11.1 + rank), agree(accelerator, False, 1e9 + 1e-6 + rank)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    accelerator.end_training()
