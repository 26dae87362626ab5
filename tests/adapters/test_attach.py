"""Adapters come and go without a trace in the base; only they and the head are trained."""

import copy

import pytest
import torch
from torch import nn

from minibert import BertForMaskedLM, BertForPreTraining, BertForTokenClassification, BertModel, UserError
from minibert.adapters import (
    BitFitConfig,
    FrozenConfig,
    HoulsbyConfig,
    LoraConfig,
    PfeifferConfig,
    attach,
    attached,
    detach,
    trainable_parameters,
)
from minibert.hf import base_weights

MODELS = [BertForPreTraining, BertForMaskedLM, BertForTokenClassification, BertModel]


def snapshot(model):
    return {name: weight.clone() for name, weight in base_weights(model.state_dict())}


def equal(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def test_every_adapter_starts_as_the_identity(make_model, batch, config):
    model = make_model()
    before = model(**batch).logits
    attach(model, config)
    assert torch.equal(model(**batch).logits, before)


@pytest.mark.parametrize("model_class", MODELS, ids=lambda model_class: model_class.__name__)
def test_every_adapter_attaches_to_every_model(make_model, batch, config, model_class):
    model = make_model(model_class)
    before = model(batch["input_ids"]).last_hidden_state
    attach(model, config)
    assert torch.equal(model(batch["input_ids"]).last_hidden_state, before)
    detach(model)
    assert not hasattr(model, "adapters")


def test_names_of_base_weights_do_not_change(make_model, config):
    model = make_model()
    names = list(model.state_dict())
    attach(model, config)
    assert [name for name in model.state_dict() if not name.startswith("adapters.default.")] == names


def test_one_step_changes_exactly_the_trainable_parameters(make_model, batch, config):
    torch.manual_seed(3)
    model = make_model()
    attach(model, config)
    for name, weight in model.named_parameters():  # away from zero, where A of LoRA has no gradient
        if name.startswith("adapters."):
            nn.init.normal_(weight, std=0.1)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)  # frozen ones too: they must not move
    model(**batch).loss.backward()
    optimizer.step()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    expected = {name for name in before if name.startswith(("adapters.", "classifier."))}
    keys = {name for name in expected if "key.bias" in name}  # softmax does not see a shift of all scores
    assert changed - keys == expected - keys
    assert trainable_parameters(model).keys() == expected


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (FrozenConfig(), 0),
        (BitFitConfig(), 3 * (7 * 14 + 23) + 14 + 14),  # layers, embeddings, pooler
        (LoraConfig(rank=3), 3 * 2 * 3 * (14 + 14)),
        (LoraConfig(rank=2, targets=("output", "up", "down")), 3 * 2 * (14 + 14 + 14 + 23 + 23 + 14)),
        (PfeifferConfig(reduction=3), 3 * (2 * 14 * 4 + 4 + 14)),
        (HoulsbyConfig(reduction=3), 3 * 2 * (2 * 14 * 4 + 4 + 14)),
    ],
)
def test_trained_numbers_are_counted_by_hand(make_model, config, count):
    model = make_model()
    attach(model, config)
    head = 5 * 14 + 5
    assert sum(weight.numel() for weight in trainable_parameters(model).values()) == count + head


def test_the_base_is_bit_equal_after_training_and_detaching(make_model, batch, config, train):
    model = make_model()
    before = snapshot(model)
    attach(model, config)
    train(model, batch)
    detach(model)
    after = snapshot(model)
    assert after.keys() == before.keys()
    for name in before:
        assert torch.equal(after[name], before[name]) != name.startswith("classifier."), name


def test_outputs_after_detaching_are_those_of_the_base(make_model, batch, config, train):
    model = make_model()
    before = model.bert(batch["input_ids"]).last_hidden_state
    attach(model, config)
    train(model, batch)
    detach(model)
    assert torch.equal(model.bert(batch["input_ids"]).last_hidden_state, before)


def test_detaching_restores_what_was_trainable(make_model, config):
    model = make_model()
    model.bert.embeddings.requires_grad_(False)
    model.classifier.linear.bias.requires_grad_(False)
    before = {name: weight.requires_grad for name, weight in model.named_parameters()}
    attach(model, config)
    detach(model)
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == before


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_adapters_are_detached_in_any_order(make_model, batch, order):
    model = make_model()
    model.bert.embeddings.requires_grad_(False)
    before = {name: weight.requires_grad for name, weight in model.named_parameters()}
    logits = model(**batch).logits
    attach(model, LoraConfig(), "a")
    attach(model, PfeifferConfig(reduction=2), "b")
    assert {name.split(".")[1] for name in trainable_parameters(model) if name.startswith("adapters.")} == {"b"}
    for name in order:
        detach(model, name)
        assert not any(weight.requires_grad for weight in model.bert.parameters()) or not attached(model)
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == before
    assert torch.equal(model(**batch).logits, logits)


def test_the_lower_adapter_stays_in_effect_and_is_not_trained(make_model, batch, train):
    model = make_model()
    attach(model, PfeifferConfig(reduction=2), "domain")
    train(model, batch)
    before = copy.deepcopy(model.adapters["domain"].state_dict())
    logits = model(**batch).logits
    attach(model, LoraConfig(), "task")
    assert torch.equal(model(**batch).logits, logits)
    train(model, batch)
    assert equal(model.adapters["domain"].state_dict(), before)
    detach(model, "task")
    assert all(weight.requires_grad for weight in model.adapters["domain"].parameters())


def test_a_deep_copy_listens_with_its_own_parts(make_model, batch, config, train):
    model = make_model()
    attach(model, config)
    train(model, batch)
    logits = model(**batch).logits
    twin = copy.deepcopy(model)
    assert torch.equal(twin(**batch).logits, logits)
    train(twin, batch)
    assert not torch.equal(twin(**batch).logits, logits)
    assert torch.equal(model(**batch).logits, logits)
    detach(twin)
    assert torch.equal(model(**batch).logits, logits)
    assert torch.equal(twin.bert(batch["input_ids"]).pooler_output, make_model().bert(batch["input_ids"]).pooler_output)


def test_an_adapter_in_evaluation_drops_nothing(make_model, batch):
    model = make_model()
    attach(model, LoraConfig(dropout=0.5))
    nn.init.normal_(model.adapters["default"].get_parameter("bert/encoder/layers/0/attention/query.lora_B.weight"))
    assert torch.equal(model(**batch).logits, model(**batch).logits)


def test_bf16_autocast_trains_every_adapter(make_model, batch, config):
    model = make_model()
    attach(model, config)
    for weight in model.adapters.parameters():
        nn.init.normal_(weight, std=0.05)
    exact = model(**batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch)
    assert (output.logits - exact).abs().max() < 0.1
    output.loss.backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in trainable_parameters(model).values())


def test_parts_take_the_dtype_of_the_base(make_model, batch, config):
    model = make_model().double()
    attach(model, config)
    assert model(**batch).logits.dtype == torch.float64
    assert all(weight.dtype == torch.float64 for weight in model.parameters())


@pytest.mark.parametrize("config", [LoraConfig(), HoulsbyConfig(reduction=2)], ids=lambda config: config.kind)
def test_a_compiled_model_computes_the_same_as_adapters_come_and_go(make_model, batch, config, train):
    model = make_model()
    compiled = torch.compile(model.bert, backend="eager", fullgraph=True)
    plain = model.bert(batch["input_ids"]).last_hidden_state
    assert torch.equal(compiled(batch["input_ids"]).last_hidden_state, plain)
    attach(model, config)
    train(model, batch)
    adapted = model.bert(batch["input_ids"]).last_hidden_state
    assert torch.equal(compiled(batch["input_ids"]).last_hidden_state, adapted)
    detach(model)
    assert torch.equal(compiled(batch["input_ids"]).last_hidden_state, plain)


def test_an_optimizer_made_before_attaching_is_refused(make_model, batch):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**batch).loss.backward()
    optimizer.step()
    attach(model, LoraConfig())
    model(**batch).loss.backward()
    with pytest.raises(UserError, match=r"the optimizer was made before adapters\.default\."):
        optimizer.step()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    detach(model)
    optimizer.step()


def test_optimizers_of_other_models_are_not_refused(make_model, batch):
    model, other = make_model(), make_model()
    attach(model, LoraConfig())
    other(**batch).loss.backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()


def test_a_wrapped_model_is_refused(make_model, config):
    with pytest.raises(UserError, match="attach before wrapping"):
        attach(nn.ModuleDict({"module": make_model()}), config)


@pytest.mark.parametrize("name", ["", "a.b", "items"])
def test_a_name_that_torch_cannot_hold_is_refused(make_model, name):
    with pytest.raises(UserError, match="cannot be named"):
        attach(make_model(), LoraConfig(), name)


def test_names_are_unique_and_known(make_model):
    model = make_model()
    with pytest.raises(UserError, match="no adapter named 'default'"):
        detach(model)
    attach(model, LoraConfig())
    with pytest.raises(UserError, match="'default' is attached already"):
        attach(model, PfeifferConfig(reduction=2))


class Prefix(nn.Module):
    """Learned vectors in front of all keys, or of all values."""

    def __init__(self, length, size):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(length, size))

    def forward(self, _, output):
        return torch.cat([self.vectors.to(output.dtype).expand(len(output), -1, -1), output], dim=1)


class Scale(nn.Module):
    """A factor for each number that the seam is given."""

    def __init__(self, size):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(size))

    def change_input(self, given):
        return given * self.factors


class Places:
    """Parts at places that a test chooses."""

    kind = "test"

    def __init__(self, **parts):
        self.made = parts

    def parts(self, model):
        return {
            f"bert.encoder.layers.{n}.{place.replace('__', '.')}": copy.deepcopy(part)
            for n in range(3)
            for place, part in self.made.items()
        }


def test_a_prefix_attaches_and_every_query_sees_it(make_model, batch):
    model = make_model()
    attach(model, Places(attention__key=Prefix(2, 14), attention__value=Prefix(2, 14)))
    together = model(**batch)
    alone = model(batch["input_ids"][1:2, :7]).last_hidden_state
    assert torch.allclose(together.last_hidden_state[1:2, :7], alone, atol=1e-5)
    together.loss.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.adapters.parameters())


def test_a_part_may_change_what_a_seam_is_given(make_model, batch):
    model = make_model()
    attach(model, Places(feed_forward__down=Scale(23)))
    factors = model.adapters["default"].get_parameter("bert/encoder/layers/1/feed_forward/down.factors")
    nn.init.normal_(factors)
    by_hand = make_model()
    by_hand.bert.encoder.layers[1].feed_forward.down.weight.data *= factors.data
    assert torch.allclose(model(**batch).logits, by_hand(**batch).logits, atol=1e-5)
