"""Attention with dropped weights is the formula with the same draws, forward and backward."""

import math

import pytest
import torch
import torch.nn.functional as F

from minibert.attention.dropped import dropped_attention
from minibert.dropout import draw, kept

BATCH, HEADS, QUERIES, KEYS, SIZE, PROBABILITY = 2, 3, 5, 7, 11, 0.3


def made(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, QUERIES, SIZE), (BATCH, HEADS, KEYS, SIZE), (BATCH, HEADS, KEYS, SIZE)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def masks():
    padding = torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool)
    padding[1, ..., 4:] = False
    square = torch.rand(BATCH, 1, QUERIES, KEYS) > 0.4
    square[0, 0, 2] = False
    return {"none": None, "padding": padding, "square": square}


def by_the_formula(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(SIZE)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num()
    keep, scale = kept(draw(weights.shape), PROBABILITY, weights.dtype)
    return weights * keep * scale @ value


@pytest.mark.parametrize("mask", ["none", "padding", "square"])
def test_context_and_gradients_are_those_of_the_formula(mask):
    given, mask = made(), masks()[mask]
    torch.manual_seed(3)
    found = dropped_attention(*given, mask, PROBABILITY)
    torch.manual_seed(3)
    expected = by_the_formula(*given, mask)
    assert torch.allclose(found, expected, atol=1e-12)
    along = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, given, along), torch.autograd.grad(expected, given, along), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-12)


def test_who_may_look_at_no_one_gets_0():
    context = dropped_attention(*made(), masks()["square"], PROBABILITY)
    assert context[0, :, 2].eq(0).all()
    assert context.isfinite().all()


def test_the_mean_over_draws_is_attention_without_dropout():
    given = [one.detach() for one in made(torch.float32)]
    mean = sum(dropped_attention(*given, None, PROBABILITY) for _ in range(4000)) / 4000
    assert torch.allclose(mean, F.scaled_dot_product_attention(*given), atol=0.06)


def test_under_autocast_it_stays_in_bfloat16():
    given = made(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        context = dropped_attention(*given, None, PROBABILITY)
    assert context.dtype == torch.bfloat16
    context.sum().backward()
    assert all(one.grad.isfinite().all() for one in given)
