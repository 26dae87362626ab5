"""Bottlenecks stand behind the sublayers, before the residual sum."""

import pytest
import torch
from torch import nn

from minibert import UserError
from minibert.adapters import HoulsbyConfig, PfeifferConfig, attach
from minibert.adapters.bottleneck import Bottleneck


def test_a_bottleneck_is_a_sum_written_out():
    torch.manual_seed(0)
    part = Bottleneck(size=7, width=3, activation="relu")
    nn.init.normal_(part.up.weight)
    nn.init.normal_(part.up.bias)
    y = torch.randn(5, 7)
    down, up, d, u = (w.tolist() for w in (part.down.weight, part.up.weight, part.down.bias, part.up.bias))
    expected = []
    for row in y.tolist():
        narrow = [max(0.0, d[w] + sum(down[w][i] * row[i] for i in range(7))) for w in range(3)]
        expected.append([row[o] + u[o] + sum(up[o][w] * narrow[w] for w in range(3)) for o in range(7)])
    assert torch.allclose(part(torch.zeros(0), y), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("config", [PfeifferConfig(reduction=4), HoulsbyConfig(reduction=4)], ids=lambda c: c.kind)
def test_bottlenecks_stand_between_sublayer_and_residual_sum(make_model, batch, config):
    model = make_model()
    attach(model, config)
    parts = dict(model.adapters["default"].parts())
    for part in parts.values():
        nn.init.normal_(part.up.weight)
    hidden = model.bert.embeddings(batch["input_ids"])
    output = model.bert(batch["input_ids"]).last_hidden_state
    model.adapters["default"].rest()
    for number, layer in enumerate(model.bert.encoder.layers):
        at = f"bert.encoder.layers.{number}"
        attended = layer.attention(hidden)
        if f"{at}.attention" in parts:
            attended = parts[f"{at}.attention"](hidden, attended)
        hidden = layer.attention_norm(hidden + attended)
        hidden = layer.feed_forward_norm(hidden + parts[f"{at}.feed_forward"](hidden, layer.feed_forward(hidden)))
    assert torch.allclose(output, hidden, atol=1e-5)
    assert len(parts) == {"pfeiffer": 3, "houlsby": 6}[config.kind]


def test_the_width_is_rounded_down_and_at_least_one(make_model):
    model = make_model()
    attach(model, PfeifferConfig(reduction=5))
    assert {part.down.out_features for _, part in model.adapters["default"].parts()} == {2}
    with pytest.raises(UserError, match="reduction: expected no more than the hidden size of 14, got 15"):
        attach(make_model(), PfeifferConfig(reduction=15))


@pytest.mark.parametrize("config_class", [PfeifferConfig, HoulsbyConfig])
def test_settings_out_of_range_are_refused_by_name(config_class):
    with pytest.raises(UserError, match=r"^reduction: expected"):
        config_class(reduction=0)
    with pytest.raises(UserError, match=r"^activation: expected one of relu, gelu, silu"):
        config_class(activation="tanh")
