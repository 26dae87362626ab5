"""What happened, as numbers in files: the resolved config, the environment, and metrics as JSON lines.

RUN/config.yaml    RUN/environment.json    RUN/metrics.jsonl: {"step": 100, "split": "train", "values": {...}}
"""

import importlib.metadata
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from accelerate import Accelerator
from tqdm import tqdm

from minibert.errors import UserError
from minibert.files import write_whole

_PACKAGES = ("minibert", "torch", "accelerate", "tokenizers", "datasets", "numpy", "safetensors")


class Record:
    """What a run says as it goes, to whoever listens: metrics.jsonl, a progress bar, trackers.

    Used as a context; only the main process writes and shows.
    """

    def __init__(self, run: Path, accelerator: Accelerator, *, total: int | None, start: int = 0, share: float = 0.0):
        """`total` steps, or None where the end is not counted in steps; `start` steps, a `share` of all, are over."""
        self._metrics = Metrics(run / "metrics.jsonl", resume_from=start, writes=accelerator.is_main_process)
        self._progress = Progress(total, start=start, share=share, shows=accelerator.is_main_process)
        self._accelerator = accelerator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.close()
        self._progress.close()

    def advance(self, share: float) -> None:
        """One more step is done, and with it a share of the whole run."""
        self._progress.advance(share)

    def log(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """These are the numbers of `split` after `step`."""
        self._metrics.write(step, split, values)
        self._progress.show(step, split, values)
        self._accelerator.log({f"{split}/{name}": value for name, value in values.items()}, step=step)


class Clock:
    """How fast is it? Tokens for each second of training since the last question; pauses are not counted."""

    def __init__(self) -> None:
        self._begin, self._tokens = time.monotonic(), 0

    def count(self, tokens: int) -> None:
        """So many tokens more were trained on."""
        self._tokens += tokens

    def values(self) -> dict[str, float]:
        """The speed since the last call."""
        now = time.monotonic()
        speed = self._tokens / max(1e-9, now - self._begin)
        self._begin, self._tokens = now, 0
        return {"tokens_per_second": speed}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside takes no time."""
        begin = time.monotonic()
        yield
        self._begin += time.monotonic() - begin


class Metrics:
    """The metrics file of a run. A resumed run forgets what was written after the step that it resumes from.

    Only the main process writes; on the others all methods do nothing.
    """

    def __init__(self, path: Path, *, resume_from: int, writes: bool):
        self._file = None
        if writes:
            kept = [line for line in _lines(path) if json.loads(line)["step"] <= resume_from]
            write_whole(path, "".join(f"{line}\n" for line in kept))
            self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Append one line, at once."""
        if self._file is not None:
            row = {"step": step, "split": split, "values": {name: _plain(value) for name, value in values.items()}}
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file in order; a last line cut short by a kill is left out."""
    return [json.loads(line) for line in _lines(path)]


class Progress:
    """A bar on a terminal; elsewhere one line whenever there is something to say. Only the main process shows it."""

    def __init__(self, total: int | None, *, start: int, share: float, shows: bool):
        self._begin, self._total, self._shows = time.monotonic(), total, shows
        self._before, self._share = share, share
        on_terminal = shows and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=start, unit="step", dynamic_ncols=True) if on_terminal else None

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, share: float) -> None:
        """One more step is done, and with it a share of the whole run."""
        self._share = share
        if self._bar is not None:
            self._bar.update()

    def show(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Show the latest numbers; on a terminal those of training stand beside the bar."""
        text = "  ".join(f"{name} {_short(value)}" for name, value in values.items())
        if self._bar is not None and split == "train":
            self._bar.set_postfix_str(text)
        elif self._bar is not None:
            self._bar.write(f"step {step} {split}: {text}")
        elif self._shows:
            of = f"/{self._total}" if self._total else f" ({self._share:.0%})"
            print(f"step {step}{of} {split}: {text}  left {self._left()}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        passed = self._share - self._before
        seconds = (time.monotonic() - self._begin) * (1 - self._share) / passed if passed > 0 else 0
        return tqdm.format_interval(seconds)


def begin_run(run: Path, config: str, accelerator: Accelerator) -> None:
    """Make the folder of a run, and write its resolved config and what it runs on; the main process does.

    Raises `UserError` where that is not to be written.
    """
    if not accelerator.is_main_process:
        return
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_whole(run / "config.yaml", config)
        write_whole(run / "environment.json", json.dumps(_environment(accelerator), indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{run}: cannot be written ({error.strerror})") from None


def _environment(accelerator: Accelerator) -> dict[str, Any]:
    """Versions, machine, processes and precision."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "engine": str(accelerator.distributed_type.value),
        "precision": accelerator.mixed_precision,
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last LF was cut short


def _plain(value: float) -> float | None:
    """A number as JSON has them: no NaN, no infinity."""
    return value if isinstance(value, int) else float(value) if math.isfinite(value) else None


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
