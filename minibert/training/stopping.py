"""When is it time to end? A cluster's warning to any process lets all finish the step, save, and end well.

    with StopRequests() as stop:
        for update in train(...):
            if stop.agreed(accelerator):
                save and leave

Nothing is broken off: a signal is a wish, noted down, and answered after the update that is on its way.
"""

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from accelerate import Accelerator

from minibert.training import launch

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""What clusters send before they end a job; Ctrl-C is not among them, and still interrupts."""


class StopRequests:
    """Has one of the signals come? Used as a context in the main thread; the handlers that were there are put back.

    The end of the launcher counts as one: a launcher that is killed may leave its processes behind, and they would
    go on beside those of the next start.
    """

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS):
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}
        self.received: str | None = None
        """What came first to this process: the name of a signal, or words about the launcher."""
        self._launcher = os.getppid() if launch.is_launched() else None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether a signal came to any process; all must ask together, and all get the same answer."""
        if self._launcher not in (None, os.getppid()):
            self.received = self.received or "the end of the launcher"
        return agree(accelerator, self.received is not None, 0.0)[0]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name


def agree(accelerator: Accelerator, stop: bool, seconds: float) -> tuple[bool, float]:
    """In one exchange between all processes: does any want to stop, and what does the first one's clock say?

    So that what follows from them, the end or a learning rate, follows at the same step everywhere.
    """
    if accelerator.num_processes == 1:
        return stop, seconds
    mine = [float(stop), seconds if accelerator.is_main_process else 0.0]
    together = accelerator.reduce(torch.tensor(mine, dtype=torch.float64, device=accelerator.device), reduction="sum")
    stops, clock = together.tolist()
    return stops > 0, clock
