"""Scores are what the papers say: each is compared with its formula, written out pair by pair in plain Python."""

import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch.func import functional_call

from minibert.attention import SCORES, Additive, Cosine, General, ScaledDot, soft
from minibert.config import AttentionConfig

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 5, 7, 11


def dot(score, head, q, k):
    return sum(a * b for a, b in zip(q, k, strict=True))


def scaled_dot(score, head, q, k):
    return dot(score, head, q, k) / math.sqrt(len(q))


def cosine(score, head, q, k):
    return score.strength[head].item() * dot(score, head, q, k) / (math.hypot(*q) * math.hypot(*k))


def general(score, head, q, k):
    weight = score.weight[head].tolist()
    return sum(q[i] * weight[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))


def additive(score, head, q, k):
    w_q, w_k, v = score.query_weight[head].tolist(), score.key_weight[head].tolist(), score.v[head, :, 0].tolist()
    hidden = [sum(q[j] * w_q[j][i] + k[j] * w_k[j][i] for j in range(len(q))) for i in range(len(v))]
    return sum(v[i] * math.tanh(hidden[i]) for i in range(len(v)))


FORMULAS = {"dot": dot, "scaled_dot": scaled_dot, "cosine": cosine, "general": general, "additive": additive}


def make(name: str, heads: int = HEADS, size: int = SIZE) -> torch.nn.Module:
    """A score in float64 whose parameters are random, so that none hides behind its initial value."""
    score = SCORES[name](heads, size).double()
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    return score


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_the_formula_of_its_paper_for_every_pair(name):
    score = make(name)
    query, key = torch.randn(BATCH, HEADS, QUERIES, SIZE).double(), torch.randn(BATCH, HEADS, KEYS, SIZE).double()
    by_hand = [
        [
            [[FORMULAS[name](score, head, q, k) for k in key[row, head].tolist()] for q in query[row, head].tolist()]
            for head in range(HEADS)
        ]
        for row in range(BATCH)
    ]
    assert torch.allclose(score(query, key), torch.tensor(by_hand).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SCORES)
def test_the_gradient_of_a_score_is_its_difference_quotient(name):
    score = make(name, heads=2, size=3)
    names = [name for name, _ in score.named_parameters()]
    query, key = torch.randn(1, 2, 3, 3).double().requires_grad_(), torch.randn(1, 2, 5, 3).double().requires_grad_()

    def scores(query, key, *parameters):
        return functional_call(score, dict(zip(names, parameters, strict=True)), (query, key))

    assert torch.autograd.gradcheck(scores, (query, key, *score.parameters()))


def test_the_config_and_the_table_name_the_same_scores():
    assert get_args(get_type_hints(AttentionConfig)["score"]) == tuple(SCORES)


def test_only_the_direction_counts_for_cosine_scores():
    score = make("cosine")
    query, key = torch.randn(BATCH, HEADS, QUERIES, SIZE).double(), torch.randn(BATCH, HEADS, KEYS, SIZE).double()
    assert torch.allclose(score(13 * query, key / 17), score(query, key))


def test_a_vector_of_zeros_has_finite_cosine_scores_and_gradients_in_half_precision():
    score = Cosine(HEADS, SIZE).half()
    query = torch.zeros(BATCH, HEADS, QUERIES, SIZE, dtype=torch.float16, requires_grad=True)
    key = torch.randn(BATCH, HEADS, KEYS, SIZE).half()
    scores = score(query, key)
    (soft(scores) @ torch.randn(BATCH, HEADS, KEYS, SIZE).half()).sum().backward()
    assert scores.eq(0).all()
    assert query.grad.isfinite().all()


def test_general_scores_start_as_scaled_dot_products():
    query, key = torch.randn(BATCH, HEADS, QUERIES, SIZE), torch.randn(BATCH, HEADS, KEYS, SIZE)
    assert torch.allclose(General(HEADS, SIZE)(query, key), ScaledDot()(query, key), atol=1e-6)


def test_fresh_cosine_scores_of_random_vectors_are_spread_as_scaled_dot_products_are():
    query, key = torch.randn(1, HEADS, 499, SIZE), torch.randn(1, HEADS, 503, SIZE)
    spread = Cosine(HEADS, SIZE)(query, key).std() / ScaledDot()(query, key).std()
    assert spread.item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("block", [1, 2, QUERIES, 64])
def test_additive_scores_in_blocks_equal_those_without(block):
    whole, blocks = make("additive"), Additive(HEADS, SIZE, block=block).double()
    blocks.load_state_dict(whole.state_dict())
    query = torch.randn(BATCH, HEADS, QUERIES, SIZE).double().requires_grad_()
    key = torch.randn(BATCH, HEADS, KEYS, SIZE).double()
    expected, given = whole._pairs(query @ whole.query_weight, key @ whole.key_weight), blocks(query, key)
    assert torch.allclose(given, expected, atol=1e-12)
    (gradient,) = torch.autograd.grad(given.square().sum(), query)
    assert torch.allclose(gradient, torch.autograd.grad(expected.square().sum(), query)[0], atol=1e-12)
