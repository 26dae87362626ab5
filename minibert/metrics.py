"""How good are predicted classes? Scores of scikit-learn by the names that GLUE uses, and which way is better."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

HIGHER_IS_BETTER = {"accuracy": True, "f1": True, "matthews": True, "loss": False}
"""Each metric that can choose the best epoch, and its direction."""


def classification(labels: npt.NDArray[np.int64], predictions: npt.NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro-averaged F1 and Matthews' correlation of predicted classes, both arrays [N]."""
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
        "matthews": float(matthews_corrcoef(labels, predictions)),
    }


def is_better(value: float, best: float | None, metric: str) -> bool:
    """Whether `value` beats `best` (None: nothing yet); a tie does not, and NaN never does."""
    if value != value:
        return False
    if best is None:
        return True
    return value > best if HIGHER_IS_BETTER[metric] else value < best


def mean_and_spread(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Mean and sample standard deviation (0 for one value) beside the values themselves."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "spread": spread, "values": list(values)}
