"""Packing: lanes are whole spans, room goes to who needs it, and unfinished rows are put together."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import unlike

from minibert.data import packing
from minibert.data.blocks import Blocks
from minibert.data.packing import MIN_ROOM, OpenRows, lanes, merged


def test_lanes_share_a_block_in_whole_spans(monkeypatch):
    monkeypatch.setattr(packing, "LANE", 83)
    block = Blocks(unlike(*([1] * (1 + d * 7 % 31) for d in range(101))), 1).block(0)
    begin, end = lanes(block)
    assert len(begin) == len(block) // 83
    assert (begin[0], end[-1]) == (0, len(block))
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert set(end) <= set(block.last)
    assert (np.abs(end - begin - 83) < 40).all()


def test_rows_are_renewed_when_full_and_the_longest_text_gets_the_most_room():
    rows = OpenRows(3, length=100, most=2)
    rows.assign(np.array([7, 5, 6]))
    assert sorted(rows.number) == [0, 1, 2]
    rows.add(np.array([True, True, False]), np.array([80, 90, 50]))  # rooms 20, 10 and 100
    rows.assign(np.array([5, 900, 30]))  # the second is closed
    assert rows.room.tolist() == [20, 100, 100]
    assert sorted(rows.number)[-1] == 3
    rows.add(np.array([True, False, False]), np.array([1, 1, 1]))  # two instances, so it is closed as well
    rows.assign(np.array([1, 2, 3]))
    assert rows.room.tolist() == [100, 100, 100]
    rows.keep(np.array([2, 0]))
    assert len(rows.number) == len(rows.room) == 2


def test_unfinished_rows_go_into_the_first_that_has_room():
    row = np.array([0, 1, 1, 2, 3, 4])
    tokens = np.array([50, 30, 10, 95, 45, 20])  # rows of 50, 40, 95, 45, 20
    numbers, count = merged(row, tokens, length=100, most=9)
    assert count == 3  # 50 + 45; 40 + 20; and 95, which is full
    assert numbers.tolist() == [0, 1, 1, 2, 0, 1]
    assert merged(row, tokens, length=100, most=1)[1] == 5
    assert merged(row[:0], tokens[:0], length=100, most=9)[1] == 0


@given(tokens=st.lists(st.integers(1, 90), min_size=1, max_size=40), most=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_putting_rows_together_loses_and_overfills_nothing(tokens, most):
    numbers, count = merged(np.arange(len(tokens)), np.array(tokens), length=90, most=most)
    lengths, held = np.bincount(numbers, tokens), np.bincount(numbers)
    assert sorted(set(numbers)) == list(range(count))
    assert lengths.sum() == sum(tokens)
    assert lengths.max() <= 90
    assert held.max() <= most
    open_ = np.flatnonzero((lengths <= 90 - MIN_ROOM) & (held < most))
    pairs = [(i, j) for i in open_ for j in open_ if i < j]
    assert all(lengths[i] + lengths[j] > 90 or held[i] + held[j] > most for i, j in pairs)
