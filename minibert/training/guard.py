"""Is an update good enough to be applied? Not with a loss or gradient that is not finite, nor with a sudden spike.

A spike is judged against the running mean of the losses that were accepted (half-life: 20 updates). A run that really
gets worse does so step by step and takes its mean along; one that stays bad ends after some updates in a row.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minibert.errors import UserError
from minibert.types import PositiveFloat, PositiveInt

HALF_LIFE = 20
"""Accepted updates after which a loss has half of its weight in the running mean."""


@dataclass(frozen=True)
class GuardSettings:
    """Which updates are left out, and when that is too many."""

    spike: PositiveFloat | None = 2.0
    """A loss more than so many times its running mean is left out; null = only what is not finite."""
    patience: PositiveInt = 10
    """The run ends after so many updates in a row that were left out."""

    def __post_init__(self) -> None:
        if self.spike is not None and self.spike <= 1:
            raise UserError(f"guard.spike: {self.spike} leaves ordinary updates out; expected more than 1, or null")


class Guard:
    """Admits updates one by one. Its judgement is the same on all processes if the numbers that it is given are."""

    def __init__(self, settings: GuardSettings):
        self.settings = settings
        self.skipped = 0
        """Updates left out so far."""
        self.reason = ""
        """Why the latest was left out."""
        self._mean, self._accepted, self._in_a_row = 0.0, 0, 0

    def admits(self, loss: float, norm: float) -> bool:
        """Whether an update with this mean loss and norm of the gradient is to be applied; it is remembered."""
        self.reason = self._objection(loss, norm)
        if self.reason:
            self.skipped, self._in_a_row = self.skipped + 1, self._in_a_row + 1
            return False
        self._in_a_row, self._accepted = 0, self._accepted + 1
        decay = 0.5 ** (1 / HALF_LIFE)
        self._mean += (1 - decay) / (1 - decay**self._accepted) * (loss - self._mean)  # with bias correction, as Adam's
        return True

    @property
    def verdict(self) -> str:
        """Why the run is to end; nothing as long as it may go on."""
        return f"{self.reason} in {self._in_a_row} updates in a row" if self._in_a_row >= self.settings.patience else ""

    def state(self) -> dict[str, float]:
        """What is remembered, as JSON can hold it."""
        return {
            "mean": self._mean,
            "accepted": self._accepted,
            "skipped": self.skipped,
            "in_a_row": self._in_a_row,
        }

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self._mean, self.skipped = float(state["mean"]), int(state["skipped"])
        self._accepted, self._in_a_row = int(state["accepted"]), int(state["in_a_row"])

    def _objection(self, loss: float, norm: float) -> str:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return "no finite gradient"
        spike = self.settings.spike
        if spike is not None and self._accepted and loss > spike * self._mean:
            return f"a loss more than {spike:g} times its running mean of {self._mean:.4g}"
        return ""
