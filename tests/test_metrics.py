"""Scores of predicted classes against counts by hand, and what is better than what."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.metrics import HIGHER_IS_BETTER, classification, is_better, mean_and_spread


def counts(labels: list[int], predictions: list[int], c: int) -> tuple[int, int, int, int]:
    """True and false positives, false and true negatives of class c."""
    pairs = [(label == c, prediction == c) for label, prediction in zip(labels, predictions, strict=True)]
    return tuple(pairs.count(pair) for pair in ((True, True), (False, True), (True, False), (False, False)))


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=61))
def test_scores_of_two_classes_are_those_of_the_formulas(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = map(list, zip(*pairs, strict=True))
    scores = classification(np.array(labels), np.array(predictions))
    assert scores["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    f1 = []
    for c in sorted({*labels, *predictions}):
        tp, fp, fn, _ = counts(labels, predictions, c)
        f1.append(2 * tp / (2 * tp + fp + fn))
    assert scores["f1"] == pytest.approx(sum(f1) / len(f1))
    tp, fp, fn, tn = counts(labels, predictions, 1)
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert scores["matthews"] == pytest.approx((tp * tn - fp * fn) / root if root else 0.0)


def test_f1_is_the_mean_over_classes_of_any_size() -> None:
    scores = classification(np.array([0] * 7 + [1, 2]), np.array([0] * 9))
    assert scores["accuracy"] == pytest.approx(7 / 9)
    assert scores["f1"] == pytest.approx((14 / 16 + 0 + 0) / 3)
    assert scores["matthews"] == 0.0


def test_a_perfect_prediction_has_ones() -> None:
    labels = np.array([3, 1, 2, 1, 3])
    assert classification(labels, labels) == {"accuracy": 1.0, "f1": 1.0, "matthews": pytest.approx(1.0)}


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "loss"])
def test_better_is_higher_for_scores_and_lower_for_a_loss(metric: str) -> None:
    up = metric != "loss"
    assert is_better(0.5, 0.4, metric) is up
    assert is_better(0.4, 0.5, metric) is not up
    assert not is_better(0.5, 0.5, metric)  # the earlier one of equals
    assert is_better(-1.0, None, metric)
    assert not is_better(math.nan, None, metric)
    assert not is_better(math.nan, 0.5, metric)


def test_every_metric_has_a_direction() -> None:
    assert HIGHER_IS_BETTER.keys() == {"loss", *classification(np.array([0, 1]), np.array([1, 1]))}
    with pytest.raises(KeyError):
        is_better(1.0, 2.0, "eval_x_loss")


def test_mean_and_spread_are_those_of_a_sample() -> None:
    values = [0.7, 0.9, 0.75, 0.81]
    figures = mean_and_spread(values)
    assert figures["mean"] == pytest.approx(statistics.mean(values))
    assert figures["spread"] == pytest.approx(statistics.stdev(values))
    assert figures["values"] == values
    assert mean_and_spread([0.25]) == {"mean": 0.25, "spread": 0.0, "values": [0.25]}
