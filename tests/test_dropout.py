"""Dropout drops the share that it is told, keeps the mean, and repeats itself for a seed."""

import pytest
import torch

from minibert.dropout import Dropout, draw, drop, kept


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_share_is_lost_and_the_others_are_scaled(probability, dtype):
    torch.manual_seed(0)
    x = torch.ones(487, 503, dtype=dtype)
    dropped = drop(x, probability)
    lost = (dropped == 0).double().mean().item()
    assert lost == pytest.approx(probability, abs=4 * (probability * (1 - probability) / x.numel()) ** 0.5 + 1e-5)
    assert dropped.dtype == dtype
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1 / (1 - probability), dtype=dtype), rtol=1e-2)


def test_the_gradient_passes_where_the_number_passed():
    torch.manual_seed(0)
    x = torch.randn(13, 17, requires_grad=True)
    dropped = drop(x, 0.3)
    dropped.backward(torch.full_like(x, 2.0))
    assert torch.allclose(x.grad, dropped.detach() / x.detach() * 2)


def test_rows_and_columns_are_drawn_independently():
    torch.manual_seed(0)
    lost = 1 - kept(draw(torch.Size((1009, 64))), 0.25, torch.float64)[0]
    both = torch.corrcoef(lost.T) - torch.eye(64, dtype=torch.float64)
    assert both.abs().max() < 6 / 1009**0.5
    assert lost.mean(0).sub(0.25).abs().max() < 6 * (0.25 * 0.75 / 1009) ** 0.5


def test_a_seed_repeats_it_and_another_draw_does_not():
    x = torch.ones(101)
    torch.manual_seed(1)
    first, second = drop(x, 0.5), drop(x, 0.5)
    torch.manual_seed(1)
    assert drop(x, 0.5).equal(first)
    assert not first.equal(second)


def test_nothing_is_done_in_evaluation_nor_at_0_and_all_is_lost_at_1():
    x = torch.randn(7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x).equal(x)
    assert Dropout(1.0)(x).eq(0).all()
