"""Masks against the sentence that each stands for, asked for every pair of query and key."""

import math

import pytest
import torch

from minibert.attention import masks


def pairs(mask: torch.Tensor) -> set[tuple[int, ...]]:
    """The places where a mask allows."""
    return set(map(tuple, mask.nonzero().tolist()))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float16])
def test_padding_allows_real_tokens_to_everyone_whatever_the_dtype(dtype):
    given = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1]])
    mask = masks.padding(given.to(dtype))
    assert mask.dtype == torch.bool
    assert mask.shape == (3, 1, 1, 5)
    assert pairs(mask[:, 0, 0]) == {(0, 0), (0, 1), (0, 2), (2, 1), (2, 3), (2, 4)}


@pytest.mark.parametrize("values", [[0, 2], [-1, 1], [0.5, 1.0], [math.nan, 1.0], [-1e9, 0.0], [-math.inf, 0.0]])
def test_padding_refuses_other_values_than_0_and_1(values):
    with pytest.raises(ValueError, match=r"attention_mask must hold 0 \(padding\) and 1 \(token\) only"):
        masks.padding(torch.tensor([values]))


@pytest.mark.parametrize("shape", [(5,), (2, 1, 5), (2, 1, 5, 5)])
def test_padding_refuses_other_shapes_than_batch_and_length(shape):
    with pytest.raises(ValueError, match=r"\[batch, length\], got shape \[" + ", ".join(map(str, shape))):
        masks.padding(torch.ones(shape))


def test_packed_sequences_see_themselves_and_nobody_sees_padding():
    numbers = [[1, 1, 1, 2, 2, 0, 0], [7, 7, 0, 3, 3, 3, 3]]
    mask = masks.packed(torch.tensor(numbers))
    assert mask.shape == (2, 1, 7, 7)
    assert pairs(mask[:, 0]) == {
        (row, query, key)
        for row in range(2)
        for query in range(7)
        for key in range(7)
        if numbers[row][query] == numbers[row][key] != 0
    }


@pytest.mark.parametrize("size", [0, 1, 3, 11])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 11), (11, 5)])
def test_a_window_reaches_so_many_neighbours_on_either_side(size, queries, keys):
    mask = masks.window(queries, keys, size)
    assert mask.shape == (queries, keys)
    assert pairs(mask) == {(q, k) for q in range(queries) for k in range(keys) if -size <= q - k <= size}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_global_tokens_see_all_and_are_seen_by_all(count):
    positions = [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3]]
    mask = masks.global_tokens(torch.tensor(positions), count)
    assert mask.shape == (2, 1, 7, 7)
    assert pairs(mask[:, 0]) == {
        (row, query, key)
        for row in range(2)
        for query in range(7)
        for key in range(7)
        if positions[row][query] < count or positions[row][key] < count
    }


def test_masks_are_put_together_with_and_and_or():
    tokens, count, size = torch.tensor([[1, 1, 1, 1, 1, 0, 0]]), 1, 1
    near = masks.window(7, 7, size) | masks.global_tokens(torch.arange(7)[None], count)
    mask = near & masks.padding(tokens)
    assert pairs(mask[0, 0]) == {
        (query, key)
        for query in range(7)
        for key in range(5)
        if abs(query - key) <= size or query < count or key < count
    }
