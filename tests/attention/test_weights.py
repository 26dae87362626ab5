"""Weights: softmax and the one best key by hand, whatever the mask, the dtype and the size of the scores."""

import math
from typing import get_args, get_type_hints

import pytest
import torch

from minibert.attention import WEIGHTS, hard, soft
from minibert.config import AttentionConfig

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(BATCH, HEADS, QUERIES, KEYS).double()


@pytest.fixture
def mask() -> torch.Tensor:
    """Random permissions, the same for all heads; the first row may look at nothing."""
    mask = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.6
    mask[0, 0, 0] = False
    return mask


def rows(scores: torch.Tensor, mask: torch.Tensor) -> list[tuple[list[float], list[bool]]]:
    """Each row of scores with its permissions."""
    allowed = mask.expand_as(scores)
    return list(zip(scores.flatten(0, -2).tolist(), allowed.flatten(0, -2).tolist(), strict=True))


def test_soft_weights_are_the_softmax_over_allowed_keys(scores, mask):
    by_hand = []
    for row, allowed in rows(scores, mask):
        total = sum(math.exp(score) for score, may in zip(row, allowed, strict=True) if may)
        by_hand.append([math.exp(score) / total if may else 0.0 for score, may in zip(row, allowed, strict=True)])
    expected = torch.tensor(by_hand).double().view_as(scores)
    assert torch.allclose(soft(scores, mask), expected, atol=1e-12)


def test_hard_weights_are_one_for_the_best_allowed_key_and_zero_elsewhere(scores, mask):
    by_hand = []
    for row, allowed in rows(scores, mask):
        best = max((score for score, may in zip(row, allowed, strict=True) if may), default=None)
        by_hand.append([float(may and score == best) for score, may in zip(row, allowed, strict=True)])
    assert torch.equal(hard(scores, mask), torch.tensor(by_hand).double().view_as(scores))


def test_without_a_mask_every_key_is_allowed(scores):
    everyone = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    for weigh in WEIGHTS.values():
        assert torch.equal(weigh(scores), weigh(scores, everyone))


def test_the_gradient_of_soft_weights_is_the_difference_quotient(scores, mask):
    assert torch.autograd.gradcheck(lambda scores: soft(scores, mask), (scores[:, :1].requires_grad_(),))


def test_the_gradient_of_hard_weights_is_that_of_soft_weights(scores, mask):
    scores.requires_grad_()
    upstream = torch.randn_like(scores)
    (through_hard,) = torch.autograd.grad(hard(scores, mask), scores, upstream)
    (through_soft,) = torch.autograd.grad(soft(scores, mask), scores, upstream)
    assert torch.equal(through_hard, through_soft)


@pytest.mark.parametrize("weigh", WEIGHTS.values(), ids=WEIGHTS)
def test_adding_a_number_to_all_scores_changes_nothing(weigh, scores, mask):
    assert torch.allclose(weigh(scores + 19, mask), weigh(scores, mask), atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weigh", WEIGHTS.values(), ids=WEIGHTS)
def test_a_query_that_may_look_at_nothing_gets_zeros_and_a_finite_gradient(weigh, dtype, scores, mask):
    scores = scores.to(dtype).requires_grad_()
    weights = weigh(scores, mask)
    weights.float().square().sum().backward()
    assert weights.dtype == dtype
    assert weights[0, :, 0].eq(0).all()
    assert weights.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weigh", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize(
    "row", [[math.inf, -math.inf, 1.0], [-math.inf, -math.inf, math.inf], [math.inf, math.inf, 0.0]]
)
@pytest.mark.parametrize("allowed", [[True, True, True], [True, True, False]])
def test_scores_that_overflowed_still_share_out_a_weight_of_one(weigh, dtype, row, allowed):
    scores, mask = torch.tensor([row], dtype=dtype, requires_grad=True), torch.tensor([allowed])
    weights = weigh(scores, mask)
    weights.float().square().sum().backward()
    assert weights.sum().item() == 1
    assert weights[~mask].eq(0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_hard_weights_tell_scores_apart_whose_soft_weights_round_to_the_same(dtype):
    scores = torch.rand(20011, KEYS).to(dtype)
    chosen = scores.gather(1, hard(scores).argmax(-1, keepdim=True))
    assert torch.equal(chosen, scores.max(-1, keepdim=True).values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_sum_over_many_keys_is_taken_in_float32(dtype):
    scores = torch.randn(3, 20011).to(dtype)
    expected = scores.double().softmax(-1).to(dtype)
    assert torch.allclose(soft(scores), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_the_config_and_the_table_name_the_same_weights():
    assert get_args(get_type_hints(AttentionConfig)["weights"]) == tuple(WEIGHTS)
