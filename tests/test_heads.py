"""Heads against their formulas in plain Python."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minibert.heads import ClassificationHead, MaskedLanguageModelHead, Pooler

BATCH, LENGTH, SIZE, VOCABULARY, LABELS = 2, 5, 7, 13, 3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def linear(layer: nn.Linear, x: list[float]) -> list[float]:
    rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [sum(w * value for w, value in zip(row, x, strict=True)) + bias for row, bias in rows]


def mlm_head(tie: bool) -> tuple[nn.Embedding, MaskedLanguageModelHead]:
    tokens = nn.Embedding(VOCABULARY, SIZE).double()
    head = MaskedLanguageModelHead(tokens, F.relu, 1e-5, tie=tie).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return tokens, head


def test_the_pooler_is_the_tanh_of_a_linear_map():
    pooler, first = Pooler(SIZE).double(), torch.randn(BATCH, SIZE).double()
    for pooled, row in zip(pooler(first), first, strict=True):
        by_hand = [math.tanh(value) for value in linear(pooler.dense, row.tolist())]
        assert pooled.tolist() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("tie", [True, False])
def test_the_masked_language_model_head_transforms_normalises_and_scores_every_word(tie):
    _, head = mlm_head(tie)
    hidden = torch.randn(BATCH, LENGTH, SIZE).double()
    scores = head(hidden)
    assert scores.shape == (BATCH, LENGTH, VOCABULARY)
    inner = [max(0.0, value) for value in linear(head.dense, hidden[1, 3].tolist())]
    mean = sum(inner) / SIZE
    deviation = math.sqrt(sum((value - mean) ** 2 for value in inner) / SIZE + 1e-5)
    gain, shift = head.norm.weight.tolist(), head.norm.bias.tolist()
    normal = [(value - mean) / deviation * g + b for value, g, b in zip(inner, gain, shift, strict=True)]
    assert scores[1, 3].tolist() == pytest.approx(linear(head.decoder, normal), abs=1e-12)


def test_a_tied_decoder_is_the_token_embedding_and_an_untied_one_is_not():
    tokens, head = mlm_head(tie=True)
    assert head.decoder.weight is tokens.weight
    head(torch.randn(3, SIZE).double()).sum().backward()
    assert tokens.weight.grad.ne(0).any()
    tokens, head = mlm_head(tie=False)
    assert head.decoder.weight is not tokens.weight
    assert head.decoder.weight.shape == tokens.weight.shape


def test_the_scores_of_a_position_do_not_depend_on_which_others_are_scored():
    _, head = mlm_head(tie=True)
    hidden = torch.randn(BATCH, LENGTH, SIZE).double()
    chosen = torch.rand(BATCH, LENGTH) < 0.5
    assert torch.allclose(head(hidden[chosen]), head(hidden)[chosen], atol=1e-12)


@pytest.mark.parametrize("shape", [(BATCH, SIZE), (BATCH, LENGTH, SIZE)])
def test_a_classification_head_is_one_linear_map_of_each_vector(shape):
    head, features = ClassificationHead(SIZE, LABELS, dropout=0.5).double().eval(), torch.randn(shape).double()
    logits = head(features)
    assert logits.shape == (*shape[:-1], LABELS)
    flat = zip(features.flatten(0, -2).tolist(), logits.flatten(0, -2).tolist(), strict=True)
    for feature, given in flat:
        assert given == pytest.approx(linear(head.linear, feature), abs=1e-12)


def test_a_classification_head_drops_features_in_training_only():
    head, features = ClassificationHead(SIZE, LABELS, dropout=1.0), torch.randn(BATCH, SIZE)
    assert torch.equal(head(features), head.linear.bias.expand(BATCH, LABELS))
    assert torch.equal(head.eval()(features), head.linear(features))
