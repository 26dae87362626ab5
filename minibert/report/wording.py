"""Numbers as a reader wants them."""

from collections.abc import Callable
from typing import NamedTuple

Format = Callable[[float], str]


class Unit(NamedTuple):
    """How values are written, round ones at the axis of a picture, and the size of a difference."""

    value: Format
    tick: Format = "{:g}".format
    size: Format = "{:.3f}".format


def count(value: float) -> str:
    """A whole number, from a million on in millions: 8,192, 35.2 million."""
    return f"{value / 1e6:,.1f} million" if value >= 1e6 else f"{value:,.0f}"


def thousands(value: float) -> str:
    """A whole number; 12,345 as 12k."""
    return f"{value / 1000:,.0f}k" if abs(value) >= 10_000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whatever reads best: 6.1 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


percent: Format = "{:.1%}".format
SHARE = Unit(percent, lambda value: f"{100 * value:g}%")
SCORE = Unit("{:.2%}".format, SHARE.tick, lambda value: f"{100 * value:.2f} points")
NUMBER = Unit("{:.3f}".format)
SPEED = Unit(thousands, thousands)
RATE = Unit("{:.2g}".format)
