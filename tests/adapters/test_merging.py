"""Merged equals attached, and unmerged is bit-equal."""

import copy

import pytest
import torch
from torch import nn

from minibert import BertForSequenceClassification, UserError
from minibert.adapters import (
    BitFitConfig,
    LoraConfig,
    PfeifferConfig,
    attach,
    detach,
    load_adapter,
    merge,
    save_adapter,
    trainable_parameters,
    unmerge,
)
from minibert.hf import base_weights

ALL = ("query", "key", "value", "output", "up", "down")
MERGEABLE = [LoraConfig(), LoraConfig(rank=3, targets=ALL, rank_stabilised=True), BitFitConfig()]


def scatter(model):
    torch.manual_seed(5)
    for weight in model.adapters.parameters():
        nn.init.normal_(weight, std=0.2)


@pytest.mark.parametrize("config", MERGEABLE)
def test_merged_equals_attached(make_model, batch, config):
    model = make_model()
    plain = model(**batch).logits
    attach(model, config)
    scatter(model)
    adapted = model(**batch).logits
    merge(model)
    assert (model(**batch).logits - adapted).abs().max() < 1e-5
    assert (plain - adapted).abs().max() > 0.01


@pytest.mark.parametrize("rank_stabilised", [False, True])
def test_the_merged_weight_is_the_formula(make_model, rank_stabilised):
    model = make_model()
    attach(model, LoraConfig(rank=16, alpha=16, rank_stabilised=rank_stabilised))
    scatter(model)
    seam = model.bert.encoder.layers[1].attention.value
    a = model.adapters["default"].get_parameter("bert/encoder/layers/1/attention/value.lora_A.weight")
    b = model.adapters["default"].get_parameter("bert/encoder/layers/1/attention/value.lora_B.weight")
    expected = seam.weight.detach() + (4.0 if rank_stabilised else 1.0) * torch.einsum("or,ri->oi", b, a)
    merge(model)
    assert torch.allclose(seam.weight, expected, atol=1e-6)


@pytest.mark.parametrize("config", MERGEABLE)
def test_unmerging_gives_the_base_back_bit_for_bit(make_model, batch, config):
    model = make_model()
    before = copy.deepcopy(dict(base_weights(model.state_dict())))
    attach(model, config)
    scatter(model)
    adapted = model(**batch).logits
    merge(model)
    unmerge(model)
    assert torch.equal(model(**batch).logits, adapted)
    assert all(torch.equal(weight, before[name]) for name, weight in base_weights(model.state_dict()))


def test_stacked_adapters_merge_together(make_model, batch):
    model = make_model()
    attach(model, LoraConfig(targets=ALL), "domain")
    attach(model, LoraConfig(rank=3), "task")
    attach(model, BitFitConfig(), "biases")
    scatter(model)
    adapted = model(**batch).logits
    merge(model)
    assert (model(**batch).logits - adapted).abs().max() < 1e-5
    unmerge(model)
    assert torch.equal(model(**batch).logits, adapted)


def test_a_merged_model_is_saved_as_a_plain_checkpoint(make_model, batch, tmp_path):
    model = make_model()
    attach(model, LoraConfig())
    scatter(model)
    merge(model)
    model.save_pretrained(tmp_path)
    plain = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(plain(**batch).logits, model(**batch).logits)


def test_twice_is_refused_and_so_is_all_that_needs_the_base(make_model, tmp_path):
    model = make_model()
    with pytest.raises(UserError, match="no adapter to merge"):
        merge(model)
    attach(model, LoraConfig())
    with pytest.raises(UserError, match="no adapter is merged"):
        unmerge(model)
    save_adapter(model, tmp_path / "before")
    merge(model)
    for action in (
        lambda: merge(model),
        lambda: attach(model, LoraConfig(), "other"),
        lambda: detach(model),
        lambda: save_adapter(model, tmp_path / "adapter"),
        lambda: load_adapter(model, tmp_path / "before", name="again"),
        lambda: trainable_parameters(model),
    ):
        with pytest.raises(UserError, match="unmerge them first"):
            action()
    assert not (tmp_path / "adapter").exists()
    unmerge(model)
    with pytest.raises(UserError, match="no adapter is merged"):
        unmerge(model)


def test_what_cannot_be_merged_is_named_and_nothing_changes(make_model, batch):
    model = make_model()
    attach(model, LoraConfig(), "a")
    attach(model, PfeifferConfig(reduction=2), "b")
    scatter(model)
    before = model(**batch).logits
    with pytest.raises(UserError, match="'b' is of the kind pfeiffer, which cannot be merged"):
        merge(model)
    assert torch.equal(model(**batch).logits, before)


def test_a_merged_deep_copy_is_independent(make_model, batch):
    model = make_model()
    attach(model, LoraConfig())
    scatter(model)
    adapted = model(**batch).logits
    merge(model)
    twin = copy.deepcopy(model)
    unmerge(twin)
    assert torch.equal(twin(**batch).logits, adapted)
    with pytest.raises(UserError, match="unmerge them first"):
        merge(model)
