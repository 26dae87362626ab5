"""Who is faster? Turn by turn, so that what slows the machine down for a while slows all contenders down.

    rates = in_turns({"ours": ours, "peer": peer}, rounds=5)
    median(rates["ours"]), ratio(rates["ours"], rates["peer"])

Speeds of one run belong together; the ratio is what can be told from one machine to another.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

K = TypeVar("K")
Contender = Callable[[], float]
"""Does the work of a turn, on a GPU to its end, and says how much it was: tokens, bytes."""


def in_turns(contenders: Mapping[K, Contender], rounds: int, *, seconds: float = math.inf) -> dict[K, list[float]]:
    """Work a second of each contender in each round, after one round that is not counted.

    After so many seconds no round begins but the first that counts.
    """
    found: dict[K, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    for turn in range(rounds + 1):
        if turn > 1 and time.perf_counter() > end:
            break
        for name, work in contenders.items():
            start = time.perf_counter()
            done = work()
            if turn:
                found[name].append(done / (time.perf_counter() - start))
    return found


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """How many times as fast as the other: the median of the ratios of the rounds."""
    return median(rate / other for rate, other in zip(rates, others, strict=True))
