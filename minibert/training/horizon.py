"""How long does a run last? So many updates, passes over the data or tokens, or a budget of time: exactly one of them.

    horizon(budget="1h30m")   and before each update the Position   ->   is it over?   how far is it?   what is left?

A resumed run keeps what it has used, since positions count from the very beginning.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minibert.errors import UserError


@dataclass(frozen=True)
class Position:
    """Where a run is before an update, counted from its very beginning."""

    step: int = 0
    """Updates, applied or left out."""
    epochs: float = 0.0
    """Passes over the training data."""
    tokens: int = 0
    """Real tokens (no padding), over all processes."""
    seconds: float = 0.0
    """What the `Stopwatch` of the main process reads; the same on all processes."""


@dataclass(frozen=True)
class Horizon:
    """The end of a run in one unit. The update in which `total` is reached is the last."""

    unit: Literal["step", "epochs", "tokens", "seconds"]
    total: float

    @property
    def grain(self) -> float:
        """What `learning_rate_factor` asks for: updates come one by one, all else flows."""
        return 1.0 if self.unit == "step" else 0.0

    def done(self, position: Position) -> float:
        """How much of `total` is over."""
        return float(getattr(position, self.unit))

    def progress(self, position: Position) -> float:
        """How far the run is, in 0 .. 1."""
        return min(1.0, self.done(position) / self.total)

    def is_over(self, position: Position) -> bool:
        """Whether no update is to follow."""
        return self.progress(position) >= 1 - 1e-12  # sums of parts of an epoch miss the whole by a rounding

    def left(self, position: Position, since: Position = Position()) -> float:
        """Seconds to the end at the speed from `since` (say, where it was resumed) to here; inf where there is none."""
        if self.unit == "seconds":
            return max(0.0, self.total - position.seconds)
        passed = self.progress(position) - self.progress(since)
        if passed <= 0:
            return float("inf")
        return (1 - self.progress(position)) * (position.seconds - since.seconds) / passed


class Stopwatch:
    """The seconds that a run has used: those before it was resumed, and those since this was made.

    Evaluating and saving count, for a budget is what a machine is lent for; the time between two sessions does not.
    """

    def __init__(self, used: float = 0.0, *, clock: Callable[[], float] = time.monotonic):
        self._clock, self._begin = clock, clock() - used

    def read(self) -> float:
        """By the clock of this process; `stopping.agree` lets all hear the same."""
        return self._clock() - self._begin


def horizon(
    *, steps: int | None = None, epochs: float | None = None, tokens: int | None = None, budget: str | None = None
) -> Horizon:
    """The end that is given; raises `UserError` unless it is exactly one, and more than nothing."""
    given = {
        name: value
        for name, value in {"steps": steps, "epochs": epochs, "tokens": tokens, "budget": budget}.items()
        if value is not None
    }
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise UserError(f"training: expected one of steps, epochs, tokens and budget, got {found}")
    [(name, value)] = given.items()
    total = parse_duration(value) if isinstance(value, str) else value
    if not total > 0:
        raise UserError(f"training.{name}: {value} is no length of a run; expected more than 0")
    return Horizon(_UNITS[name], total)


def parse_duration(text: str) -> float:
    """Seconds: "2d", "1h30m", "90s", "1.5h", or a bare number of them. Raises `UserError` for anything else."""
    found = re.fullmatch(rf"{_part('d')}{_part('h')}{_part('m')}{_part('s?')}", text.strip())
    if not found or not any(found.groups()):
        raise UserError(f"{text!r} is not a duration; expected such as 90s, 30m, 1h30m or 2d")
    return sum(float(number or 0) * length for number, length in zip(found.groups(), (86400, 3600, 60, 1), strict=True))


def _part(unit: str) -> str:
    return rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?"


_UNITS: dict[str, Literal["step", "epochs", "tokens", "seconds"]] = {
    "steps": "step",
    "epochs": "epochs",
    "tokens": "tokens",
    "budget": "seconds",
}
