"""The picture of the README: held-out losses and accuracies of a pretraining run, from its metrics.jsonl.

python docs/curves.py runs/english/mini/metrics.jsonl docs/mini.svg
"""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minibert.training.tracking import read_metrics

PANELS = {
    "masked-LM loss": ("mlm_loss", None),
    "masked-LM accuracy": ("mlm_accuracy", None),
    "next-sentence loss": ("nsp_loss", 0.6931),
    "next-sentence accuracy": ("nsp_accuracy", 0.5),
}
"""For each panel the value that it shows, and what guessing reaches."""


def main(metrics: Path, picture: Path) -> None:
    """Draw the validation rows of `metrics` into `picture`."""
    rows = [row for row in read_metrics(metrics) if row["split"] == "validation"]
    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, (title, (name, guessing)) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        draw(axes, title, [row["step"] for row in rows], [row["values"][name] for row in rows], guessing)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "minibert"}):
        figure.savefig(picture, metadata={"Date": None})


def draw(axes: Axes, title: str, steps: list[int], values: list[float], guessing: float | None) -> None:
    """One curve over the steps, its last value beside it."""
    axes.plot(steps, values, marker="o", markersize=3)
    axes.annotate(f" {values[-1]:.3f}", (steps[-1], values[-1]), va="center")
    if guessing is not None:
        axes.axhline(guessing, linestyle="--", linewidth=1, color="gray")
    axes.set_title(f"{title}, held-out documents", fontsize=10)
    axes.set_xlabel("step")
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
