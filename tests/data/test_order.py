"""Order: a permutation that is never stored is one all the same, and as random as one that is drawn."""

import numpy as np
import pytest
from scipy.stats import chisquare

from minibert.data.order import Permutation
from minibert.data.random import generator


def permutation(size: int, *key: int) -> np.ndarray:
    return Permutation(size, generator(*key))[np.arange(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 65_537])
def test_each_index_stands_at_exactly_one_position(size):
    for key in range(3):
        np.testing.assert_array_equal(np.sort(permutation(size, key)), np.arange(size))


def test_positions_can_be_asked_in_any_order_and_number():
    whole, some = permutation(1013, 5), Permutation(1013, generator(5))
    positions = generator(1).integers(1013, size=317)
    np.testing.assert_array_equal(some[positions], whole[positions])
    assert some[positions[:0]].tolist() == []
    assert len(some) == 1013


@pytest.mark.parametrize("size", [2, 3, 5, 17, 61])
def test_over_many_keys_an_index_stands_anywhere_alike(size):
    drawn = np.stack([permutation(size, 7, key) for key in range(1000)])
    for position in {0, size // 2, size - 1}:
        assert chisquare(np.bincount(drawn[:, position], minlength=size)).pvalue > 1e-4


def test_all_orders_of_three_are_alike():
    drawn = np.stack([permutation(3, 11, key) for key in range(2000)])
    assert chisquare(np.unique(drawn @ [9, 3, 1], return_counts=True)[1]).pvalue > 1e-4


def test_neighbours_do_not_stay_neighbours_and_do_not_keep_their_order():
    steps = np.diff(permutation(65_537, 3))
    assert (np.abs(steps) < 100).mean() < 2 * 200 / 65_537
    assert abs((steps > 0).mean() - 0.5) < 0.01
    assert abs(len(np.unique(steps)) - 48_190) < 300  # as many as in orders that numpy draws: 48,117 to 48,260


def test_no_two_keys_share_positions_more_often_than_drawn_orders_do():
    orders = [permutation(4099, 2, key) for key in range(20)]
    agreements = [np.sum(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert abs(np.mean(agreements) - 1) < 0.4  # Poisson with mean 1, of 190 pairs


def test_a_corpus_of_any_size_costs_nothing():
    order = Permutation(10**12 + 39, generator(1))
    found = order[np.arange(10_007) * 99_929]
    assert len(np.unique(found)) == 10_007
    assert found.min() >= 0
    assert found.max() < 10**12 + 39
    assert abs(found.mean() / 10**12 - 0.5) < 0.02
