"""Scripts as processes that can be killed; they start at once, for they are forked from one that has imported all."""

import faulthandler
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PREPARE, PRETRAIN = ROOT / "pretrain" / "prepare.py", ROOT / "pretrain" / "train.py"
FINETUNE, PREDICT = ROOT / "finetune" / "train.py", ROOT / "finetune" / "predict.py"

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "torch._dynamo", "torch.distributed.fsdp"]  # torch imports the two when it makes an optimizer, and DDP
    + [f"minibert.{name}" for name in ("report", "metrics", "inference", "data.corpus", "data.batches", "data.tasks")]
    + [f"minibert.training.{name}" for name in ("launch", "loop", "checkpoint", "resume", "tracking")]
)


class Ended(NamedTuple):
    """How a process ended: its exit code, negative for a signal, and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    """A process on its way."""

    process: BaseProcess
    said: Path

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)

    def wait(self, seconds: float = 120) -> Ended:
        """Wait for its end; one that takes longer is killed, and the test fails."""
        self.process.join(seconds)
        late = self.process.exitcode is None
        if late:
            self.kill()
            self.process.join()
        out, err = (self.said.with_suffix(ending).read_text("utf-8", "replace") for ending in (".out", ".err"))
        assert not late, f"still running after {seconds} s: {err}"
        assert self.process.exitcode is not None
        return Ended(self.process.exitcode, out, err)


def start(script: Path, *options: object, said: Path, **environment: str) -> Running:
    """Run a script with options; what it says goes to the files `said`.out and `said`.err."""
    return _start(_run_script, (str(script), [str(option) for option in options]), said, environment)


def run(script: Path, *options: object, said: Path, **environment: str) -> Ended:
    """Run a script to its end."""
    return start(script, *options, said=said, **environment).wait()


def start_all(script: Path, *options: object, said: Path, world: int) -> list[Running]:
    """Run a script in several processes together, on the CPU, as `torchrun` does."""
    return [
        start(script, *options, said=said.with_name(f"{said.name}-{rank}"), **environment)
        for rank, environment in enumerate(together(world))
    ]


def call_all(function: Callable[..., None], *arguments: object, said: Path, world: int) -> list[Ended]:
    """Call a function of a test module in several processes together."""
    running = [
        _start(function, arguments, said.with_name(f"{said.name}-{rank}"), environment)
        for rank, environment in enumerate(together(world))
    ]
    return [process.wait() for process in running]


def together(world: int) -> list[dict[str, str]]:
    """The environment of each of several processes that find one another."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def wait_until(condition: Callable[[], bool], running: Running, *, seconds: float = 60) -> None:
    """Look again and again, until it is so or the process has ended."""
    end = time.monotonic() + seconds
    while not condition() and running.process.is_alive():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.0005)


def _start(
    function: Callable[..., None], arguments: Sequence[Any], said: Path, environment: Mapping[str, str]
) -> Running:
    for ending in (".out", ".err"):
        said.with_suffix(ending).touch()
    process = _CONTEXT.Process(target=_prepared, args=(function, arguments, str(said), dict(environment)))
    process.start()
    return Running(process, said)


def _prepared(
    function: Callable[..., None], arguments: Sequence[Any], said: str, environment: Mapping[str, str]
) -> None:
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not forked from a server
    os.environ.update(environment)
    for descriptor, ending in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(said + ending, os.O_WRONLY | os.O_TRUNC), descriptor)
    faulthandler.dump_traceback_later(100)  # one that hangs says where
    one_thread()
    function(*arguments)


def one_thread() -> None:
    """Let everything believe in one core: the threads of a tiny model do nothing but wait for one another."""
    os.sched_getaffinity = lambda pid: {0}


def _run_script(script: str, options: list[str]) -> None:
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
