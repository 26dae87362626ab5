"""The learning rate as a function of the update's number, and of nothing else."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minibert.types import UnitInterval


@dataclass(frozen=True)
class ScheduleSettings:
    """Learning-rate schedule, counted in updates: not in micro-batches, not in processes."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = "linear"
    """After the warm-up: constant, linear or cosine to zero, or wsd (stable, then 1 - sqrt decay to zero)."""
    warmup: UnitInterval = 0.1
    """Share of all updates in which the rate rises linearly."""
    decay: UnitInterval = 0.2
    """Share of all updates in which wsd decays, at the end."""


def learning_rate_factor(update: int, updates: int, settings: ScheduleSettings) -> float:
    """What the peak rate is multiplied with at `update` = 0 .. updates - 1; at `updates` a decay has reached 0.

    Linear and cosine: Loshchilov & Hutter 2017, without restarts; wsd with 1 - sqrt: Hägele et al. 2024, section 3.
    """
    warmup = round(settings.warmup * updates)
    if update < warmup:
        return (update + 1) / warmup
    return _SHAPES[settings.kind](update, warmup, updates, settings)


def _constant(update: int, warmup: int, updates: int, settings: ScheduleSettings) -> float:
    return 1.0


def _linear(update: int, warmup: int, updates: int, settings: ScheduleSettings) -> float:
    return 1 - _share(update, warmup, updates)


def _cosine(update: int, warmup: int, updates: int, settings: ScheduleSettings) -> float:
    return (1 + math.cos(math.pi * _share(update, warmup, updates))) / 2


def _stable_then_decay(update: int, warmup: int, updates: int, settings: ScheduleSettings) -> float:
    begin = max(warmup, updates - round(settings.decay * updates))
    return 1 - math.sqrt(_share(update, begin, updates))


def _share(update: int, begin: int, end: int) -> float:
    """How much of begin .. end is over, in 0 .. 1."""
    return min(1.0, max(0.0, (update - begin) / max(1, end - begin)))


_SHAPES: dict[str, Callable[[int, int, int, ScheduleSettings], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _stable_then_decay,
}
