"""The learning rate as a function of how far the run is, and of nothing else."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minibert.types import UnitInterval


@dataclass(frozen=True)
class ScheduleSettings:
    """Learning-rate schedule over the length of the run: its updates, epochs, tokens or time; never micro-batches."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = "linear"
    """After the warm-up: constant, linear or cosine to zero, or wsd (stable, then 1 - sqrt decay to zero)."""
    warmup: UnitInterval = 0.1
    """Share of the run in which the rate rises linearly."""
    decay: UnitInterval = 0.2
    """Share of the run in which wsd decays, at the end."""


def learning_rate_factor(done: float, total: float, settings: ScheduleSettings, *, grain: float = 1.0) -> float:
    """What the peak rate is multiplied with when `done` of `total` is over; at `total` a decay has reached 0.

    Linear and cosine: Loshchilov & Hutter 2017, without restarts; wsd with 1 - sqrt: Hägele et al. 2024, section 3.

    Args:
        grain: the smallest step of `done`. 1 for updates: warm-up and decay are whole numbers of them, and the first
            update has a rate. 0 for what flows, such as tokens, epochs and seconds; their unit does not matter.
    """
    warmup = _whole(settings.warmup * total, grain)
    if done < warmup:
        return (done + grain) / warmup
    begin = max(warmup, total - _whole(settings.decay * total, grain)) if settings.kind == "wsd" else warmup
    return _SHAPES[settings.kind](_share(done, begin, total))


def _whole(length: float, grain: float) -> float:
    return round(length / grain) * grain if grain else length


def _share(done: float, begin: float, end: float) -> float:
    """How much of begin .. end is over, in 0 .. 1."""
    return min(1.0, max(0.0, (done - begin) / (end - begin))) if begin < end else 0.0


_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "wsd": lambda share: 1 - math.sqrt(share),
}
"""How much is left of the peak rate, by how much of its fall is over."""
