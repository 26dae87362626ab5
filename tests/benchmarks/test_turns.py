"""Do contenders take turns, and is the first round left out?"""

import time

import pytest
from parts.turns import in_turns, ratio


def test_each_has_its_turn_after_the_other_and_the_first_round_does_not_count():
    played = []

    def contender(name, slow):
        def work():
            time.sleep(slow if played.count(name) else 0.5)
            played.append(name)
            return 7.0

        return work

    rates = in_turns({"a": contender("a", 0.02), "b": contender("b", 0.06)}, rounds=3)
    assert played == ["a", "b"] * 4
    assert [len(found) for found in rates.values()] == [3, 3]
    assert all(14 < rate <= 350 for rate in rates["a"])
    assert ratio(rates["a"], rates["b"]) > 1


def test_where_time_is_short_one_round_counts():
    rates = in_turns({"slow": lambda: time.sleep(0.01) or 1.0}, rounds=5, seconds=0.001)
    assert len(rates["slow"]) == 1


def test_the_ratio_is_that_of_the_rounds_and_not_that_of_the_medians():
    assert ratio([10, 6, 2], [5, 2, 4]) == 2
    with pytest.raises(ValueError, match="zip"):
        ratio([1, 2], [1])
