"""Curves over the steps, and the scores of seeds beside each other."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from minibert.report.runs import FinetuningRun, Series
from minibert.report.svg import ACCENT, INK, LINE, MUTE, PAGE, SOFT, picture
from minibert.report.wording import Unit

MOST_POINTS = 150
"""A curve of more points is drawn as means of neighbours."""

_ROW = 44


def line_chart(
    title: str, lines: dict[str, Series], unit: Unit, *, reference: tuple[str, float] | None = None, zero: bool = False
) -> Markup:
    """Curves over the steps by their names; the last is the one to look at, and its last value stands at its end.

    A curve of many points is drawn as means of neighbouring ones, within the band of their extremes. `reference` is a
    value to compare with and its name; `zero`: the axis begins there.
    """

    def draw(axes: Any) -> None:
        _name_ticks(axes.xaxis, "{:,.0f}".format)
        _name_ticks(axes.yaxis, unit.tick)
        for number, points in enumerate(lines.values(), start=1):
            _draw_curve(axes, points, unit, is_main=number == len(lines))
        if reference:
            axes.axhline(reference[1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.update_datalim([(0, 0)], updatey=zero)
        axes.set_xlim(0, axes.dataLim.x1 or 1)
        axes.grid(visible=False, axis="x")
        names = [*lines, reference[0]] if reference else [*lines]
        style = {"frameon": False, "borderaxespad": 0, "handlelength": 1.3, "handletextpad": 0.5, "columnspacing": 1.3}
        axes.figure.legend(axes.lines, names, loc="upper left", ncols=3, **style)

    words = [f"{name} {_from_to(points, unit)}" for name, points in lines.items()]
    return picture(f"{title}: {'; '.join(words)}", draw, height=254, left=48, right=64, top=32, bottom=26)


def seed_chart(title: str, runs: Sequence[FinetuningRun], unit: Unit) -> Markup:
    """Seeds as dots, a row for each run, on one axis; the tick is the mean, the pale bar one spread to either side."""

    def draw(axes: Any) -> None:
        _name_ticks(axes.xaxis, unit.tick)
        axes.set(ylim=(_ROW * len(runs), 0), yticks=())
        for number, run in enumerate(runs):
            _draw_seeds(axes, run, top=_ROW * number)

    words = [f"{run.name}, mean {unit.value(run.score.mean)}, seeds {_listed(run.score.values, unit)}" for run in runs]
    height = _ROW * len(runs) + 26
    return picture(f"{title}: {'; '.join(words)}", draw, height=height, left=14, right=22, top=0, bottom=26)


class Means(NamedTuple):
    """Neighbouring points as one: the last of their steps, the mean and the extremes of their values."""

    steps: np.ndarray
    values: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


def thinned(points: Series, most: int = MOST_POINTS) -> Means:
    """At most `most` means of equally many neighbours (the last of what is left)."""
    steps, values = np.array(points, dtype=np.float64).T
    begins = np.arange(0, len(steps), -(-len(steps) // most))
    ends = np.append(begins[1:], len(steps))
    lows, highs = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
    return Means(steps[ends - 1], np.add.reduceat(values, begins) / (ends - begins), lows, highs)


def _draw_curve(axes: Any, points: Series, unit: Unit, *, is_main: bool) -> None:
    means, colour = thinned(points), ACCENT if is_main else MUTE
    dots = {"marker": "o", "markersize": 5, "markeredgewidth": 0} if len(points) <= 25 else {}
    axes.plot(means.steps, means.values, color=colour, linewidth=2 if is_main else 1.5, clip_on=False, **dots)
    if len(means.steps) < len(points):
        axes.fill_between(means.steps, means.lows, means.highs, color=colour, alpha=0.18, linewidth=0)
    if is_main:
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center_baseline"}
        axes.annotate(unit.value(means.values[-1]), (1, means.values[-1]), (8, 0), **place, color=colour, weight="bold")


def _draw_seeds(axes: Any, run: FinetuningRun, top: float) -> None:
    score, middle, colour = run.score, top + 31, ACCENT if run.is_pretrained else MUTE
    axes.plot([score.mean - score.spread, score.mean + score.spread], [middle] * 2, color=LINE, linewidth=7)
    style = {"color": colour, "markersize": 10, "markeredgecolor": PAGE, "markeredgewidth": 1.5, "clip_on": False}
    axes.plot(score.values, [middle] * len(score.values), "o", **style)
    axes.plot(score.mean, middle, "|", color=INK, markersize=16, markeredgewidth=2)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(run.name, (0, top + 15), (-12, 0), color=INK, **place)


def _name_ticks(axis: Any, name: Callable[[float], str]) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=(1, 2, 5, 10), min_n_ticks=1))
    axis.set_major_formatter(lambda value, place: name(value))
    axis.set_tick_params(length=0, pad=7, labelcolor=SOFT)


def _from_to(points: Series, unit: Unit) -> str:
    (begin, first), (end, last) = points[0], points[-1]
    return f"from {unit.value(first)} at step {begin:,} to {unit.value(last)} at step {end:,}"


def _listed(values: Sequence[float], unit: Unit) -> str:
    return ", ".join(map(unit.value, values))
