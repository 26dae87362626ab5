"""LoRA is W + s B A, in every way of computing it."""

import math

import pytest
import torch
from torch import nn

from minibert import UserError
from minibert.adapters import LoraConfig, attach
from minibert.adapters.lora import LowRank


def test_the_scale_is_alpha_over_rank_or_over_its_root():
    assert LoraConfig(rank=16, alpha=16).scale == 1.0
    assert LoraConfig(rank=16, alpha=16, rank_stabilised=True).scale == 4.0
    assert LoraConfig(rank=4, alpha=6).scale == 1.5


@pytest.mark.parametrize("rank_stabilised", [False, True])
def test_the_update_is_a_product_written_out(rank_stabilised):
    rank, alpha, rows, inputs, outputs = 3, 5.0, 2, 7, 11
    torch.manual_seed(0)
    part = LowRank(outputs, inputs, LoraConfig(rank, alpha, rank_stabilised=rank_stabilised))
    nn.init.normal_(part.lora_B.weight)
    given, answer = torch.randn(rows, inputs), torch.randn(rows, outputs)
    output = part(given, answer).tolist()
    a, b, x, y = (tensor.tolist() for tensor in (part.lora_A.weight, part.lora_B.weight, given, answer))
    scale = alpha / math.sqrt(rank) if rank_stabilised else alpha / rank
    for row in range(rows):
        for o in range(outputs):
            total = sum(b[o][r] * sum(a[r][i] * x[row][i] for i in range(inputs)) for r in range(rank))
            assert math.isclose(output[row][o], y[row][o] + scale * total, abs_tol=1e-5)


def test_dropout_acts_on_what_the_update_sees_only_in_training():
    part = LowRank(11, 7, LoraConfig(rank=7, alpha=7, dropout=0.25))
    nn.init.eye_(part.lora_A.weight)
    nn.init.eye_(part.lora_B.weight)
    torch.manual_seed(0)
    dropped = part(torch.ones(1000, 7), torch.zeros(1000, 11))[:, :7]
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.7 < (dropped > 0).float().mean() < 0.8
    assert torch.equal(part.eval()(torch.ones(1, 7), torch.zeros(1, 11))[:, :7], torch.ones(1, 7))


def test_each_target_is_the_map_of_that_name(make_model):
    for target, path in {"output": "attention/output", "up": "feed_forward/up", "key": "attention/key"}.items():
        model = make_model()
        attach(model, LoraConfig(targets=(target,)))
        assert dict(model.adapters["default"].named_children()).keys() == {
            f"bert/encoder/layers/{number}/{path}" for number in range(3)
        }


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"dropout": 1.0}, "dropout"),
        ({"targets": ()}, "targets"),
        ({"targets": ("query", "pooler")}, "targets"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings, field):
    with pytest.raises(UserError, match=f"^{field}: expected"):
        LoraConfig(**settings)
