"""Encoder layers against the same formula in a few lines; activations against published values."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from minibert.attention import MultiHeadAttention, masks
from minibert.encoder import Encoder, EncoderLayer, FeedForward, activation
from minibert.errors import UserError

BATCH, LENGTH, HEADS, SIZE, INTERMEDIATE = 2, 7, 3, 15, 23
ACTIVATIONS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(dropout: float = 0.0) -> EncoderLayer:
    """A layer in float64 in which no parameter is trivial."""
    attention = MultiHeadAttention(SIZE, HEADS, dropout=dropout)
    layer = EncoderLayer(attention, FeedForward(SIZE, INTERMEDIATE, F.gelu), SIZE, 1e-5, dropout).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def normalise(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    deviation = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def test_a_layer_adds_each_sublayer_to_its_input_and_normalises_the_sum():
    layer, hidden = make(), torch.randn(BATCH, LENGTH, SIZE).double()
    mask = masks.padding(torch.tensor([[1] * LENGTH, [1, 1, 1, 0, 0, 0, 0]]))
    expected = normalise(hidden + layer.attention(hidden, mask=mask), layer.attention_norm)
    up, down = layer.feed_forward.up, layer.feed_forward.down
    inner = expected @ up.weight.T + up.bias
    inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    expected = normalise(expected + inner @ down.weight.T + down.bias, layer.feed_forward_norm)
    assert torch.allclose(layer(hidden, mask), expected, atol=1e-12)


def test_the_encoder_applies_its_layers_in_order_with_the_same_mask():
    first, second, hidden = make(), make(), torch.randn(BATCH, LENGTH, SIZE).double()
    mask = masks.window(LENGTH, LENGTH, 1)
    assert torch.equal(Encoder([first, second])(hidden, mask), second(first(hidden, mask), mask))


def test_with_all_of_it_dropped_only_the_residual_stream_is_left():
    layer, hidden = make(dropout=1.0), torch.randn(BATCH, LENGTH, SIZE).double()
    left = normalise(normalise(hidden, layer.attention_norm), layer.feed_forward_norm)
    assert torch.allclose(layer(hidden), left, atol=1e-12)
    assert not torch.allclose(layer.eval()(hidden), left, atol=1e-3)


def test_the_seams_that_adapters_attach_to_are_there():
    names = dict(Encoder([make(), make()]).named_modules())
    for number in range(2):
        for seam in ("attention", "feed_forward"):
            assert f"layers.{number}.{seam}" in names
        for seam in ("attention.query", "attention.key", "attention.value", "attention.output"):
            assert names[f"layers.{number}.{seam}"].weight.shape == (SIZE, SIZE)
        assert names[f"layers.{number}.feed_forward.up"].weight.shape == (INTERMEDIATE, SIZE)
        assert names[f"layers.{number}.feed_forward.down"].weight.shape == (SIZE, INTERMEDIATE)


@pytest.mark.parametrize(
    ("name", "at_one"),
    [("gelu", 0.841345), ("gelu_new", 0.841192), ("gelu_pytorch_tanh", 0.841192), ("relu", 1.0), ("silu", 0.731059)],
)
def test_activations_have_their_published_values_at_one(name, at_one):
    assert activation(name)(torch.tensor(1.0)).item() == pytest.approx(at_one, abs=1e-6)


def test_the_two_forms_of_gelu_differ_by_at_most_5e_4_near_2_7():
    x = torch.linspace(-7, 7, 140001).double()
    gap = (activation("gelu")(x) - activation("gelu_new")(x)).abs()
    assert gap.max().item() == pytest.approx(4.73e-4, abs=1e-6)
    assert x[gap.argmax()].abs().item() == pytest.approx(2.70, abs=0.01)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_means_what_transformers_means_by_its_name(name):
    x = torch.linspace(-7, 7, 1009).double()
    assert torch.allclose(activation(name)(x), ACT2FN[name](x), atol=1e-12)


def test_an_unknown_activation_is_refused_with_those_that_are_known():
    with pytest.raises(UserError, match=f"hidden_act: expected one of {', '.join(ACTIVATIONS)}, got swish"):
        activation("swish")
