"""LoRA goes to and from the library `peft` with equal logits."""

import json

import pytest
import torch
from torch import nn

from minibert import BertForPreTraining, BertForSequenceClassification, UserError
from minibert.adapters import LoraConfig, attach, load_adapter, save_adapter
from minibert.adapters.lora import LowRank

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

ALL = ("query", "key", "value", "output", "up", "down")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def base(make_model, tmp_path):
    make_model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def theirs(base):
    return transformers.AutoModelForSequenceClassification.from_pretrained(base).eval()


def ours(base):
    return BertForSequenceClassification.from_pretrained(base).eval()


def scatter(parameters):
    torch.manual_seed(7)
    for weight in parameters:
        nn.init.normal_(weight, std=0.2)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(rank=3),
        LoraConfig(rank=16, alpha=16, rank_stabilised=True),
        LoraConfig(rank=2, alpha=5, targets=ALL),
        LoraConfig(rank=2, targets=("down",)),
        LoraConfig(rank=2, targets=("key", "output")),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_peft_loads_ours(base, batch, tmp_path, config):
    model = ours(base)
    attach(model, config)
    scatter([*model.adapters.parameters(), *model.classifier.parameters()])
    save_adapter(model, tmp_path / "adapter", base=base)
    loaded = peft.PeftModel.from_pretrained(theirs(base), tmp_path / "adapter")
    assert (loaded(**batch).logits - model(**batch).logits).abs().max() < 1e-5
    auto = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=5).eval()
    assert (auto(**batch).logits - model(**batch).logits).abs().max() < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 3, "lora_alpha": 7, "target_modules": ["query", "value"]},
        {"r": 16, "lora_alpha": 16, "use_rslora": True},
        {"r": 2, "target_modules": r".*layer\.\d+\.output\.dense"},
        {"r": 2, "target_modules": ["output.dense", "intermediate.dense", "key"]},
    ],
)
def test_ours_loads_that_of_peft(base, batch, tmp_path, settings):
    trained = peft.get_peft_model(theirs(base), peft.LoraConfig(task_type="SEQ_CLS", **settings)).eval()
    scatter(weight for weight in trained.parameters() if weight.requires_grad)
    trained.save_pretrained(tmp_path / "adapter")
    model = ours(base)
    config = load_adapter(model, tmp_path / "adapter")
    assert (model(**batch).logits - trained(**batch).logits).abs().max() < 1e-5
    assert config.rank == settings["r"]


def test_the_forward_pass_is_that_of_peft(make_model):
    torch.manual_seed(0)
    linear, given = nn.Linear(7, 11), torch.randn(3, 5, 7)
    layer = peft.get_peft_model(
        nn.ModuleDict({"map": linear}), peft.LoraConfig(r=3, lora_alpha=5, target_modules=["map"])
    )
    other = layer.base_model.model["map"]
    part = LowRank(11, 7, LoraConfig(rank=3, alpha=5))
    nn.init.normal_(part.lora_B.weight)
    other.lora_A["default"].weight.data.copy_(part.lora_A.weight)
    other.lora_B["default"].weight.data.copy_(part.lora_B.weight)
    assert torch.allclose(part(given, linear(given)), other(given), atol=1e-6)
    assert part.scale == other.scaling["default"]


def test_names_and_fields_are_those_of_peft(base, tmp_path):
    model = ours(base)
    attach(model, LoraConfig(rank=3))
    save_adapter(model, tmp_path / "ours")
    other = peft.get_peft_model(theirs(base), peft.LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=16))
    other.save_pretrained(tmp_path / "theirs")
    files = [_shapes(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs")]
    assert files[0] == files[1]
    written, reference = (
        json.loads((tmp_path / n / "adapter_config.json").read_text("utf-8")) for n in ("ours", "theirs")
    )
    for field in ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias", "inference_mode"):
        assert written[field] == reference[field]
    assert written.keys() <= reference.keys()


def test_peft_loads_what_was_trained_on_masked_words(make_model, batch, tmp_path):
    model = make_model(BertForPreTraining)
    model.save_pretrained(tmp_path / "base")
    attach(model, LoraConfig(rank=3))
    scatter(model.adapters.parameters())
    save_adapter(model, tmp_path / "adapter")
    other = transformers.BertForPreTraining.from_pretrained(tmp_path / "base").eval()
    loaded = peft.PeftModel.from_pretrained(other, tmp_path / "adapter")
    expected = model(batch["input_ids"]).prediction_logits
    assert (loaded(batch["input_ids"]).prediction_logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "use_dora: expected plain LoRA, got True"),
        ({"bias": "lora_only"}, "bias: expected none, got lora_only"),
        ({"alpha_pattern": {"query": 3}}, "alpha_pattern: expected plain LoRA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: pissa changes the weights of the base"),
        ({"target_modules": ["query", "dense"]}, r"target_modules: expected .* see bert\.pooler\.dense"),
        ({"layers_to_transform": [0, 2]}, r"lacks base_model\.model\.bert\.encoder\.layer\.1\."),
    ],
)
def test_what_we_cannot_follow_is_refused(base, tmp_path, settings, message):
    config = peft.LoraConfig(**{"task_type": "SEQ_CLS", "target_modules": ["query"], **settings})
    peft.get_peft_model(theirs(base), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=message):
        load_adapter(ours(base), tmp_path / "adapter")


def test_an_adapter_without_a_head_is_refused_unless_that_is_asked(base, tmp_path, batch):
    trained = peft.get_peft_model(theirs(base), peft.LoraConfig(target_modules=["query"])).eval()
    scatter(weight for weight in trained.parameters() if weight.requires_grad)
    trained.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=r"lacks base_model\.model\.classifier\.bias"):
        load_adapter(ours(base), tmp_path / "adapter")
    model = ours(base)
    load_adapter(model, tmp_path / "adapter", with_head=False)
    assert (model(**batch).logits - trained(**batch).logits).abs().max() < 1e-5


def test_another_kind_of_peft_is_refused(base, tmp_path):
    config = peft.IA3Config(task_type="SEQ_CLS", target_modules=["key"], feedforward_modules=[])
    peft.get_peft_model(theirs(base), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match="peft_type: expected LORA, got IA3"):
        load_adapter(ours(base), tmp_path / "adapter")


def _shapes(path):
    from safetensors.torch import load_file

    return {name: weight.shape for name, weight in load_file(path).items()}
