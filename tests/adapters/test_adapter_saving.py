"""An adapter that was saved comes back with its head on the same base, and on no other."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minibert import BertForPreTraining, BertForSequenceClassification, BertForTokenClassification, UserError
from minibert.adapters import (
    BitFitConfig,
    LoraConfig,
    PfeifferConfig,
    attach,
    attached,
    base_of,
    detach,
    load_adapter,
    save_adapter,
)


@pytest.fixture
def base(make_model, tmp_path):
    """The directory of a model without a head for the task, as pretraining leaves it."""
    make_model(BertForPreTraining).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def load(base):
    """The classifier on that base; the seed draws its head."""

    def load(seed):
        torch.manual_seed(seed)
        return BertForSequenceClassification.from_pretrained(base, num_labels=5).eval()

    return load


@pytest.fixture
def saved(load, batch, config, train, tmp_path, base):
    """A trained adapter of each kind: its directory and its logits."""
    model = load(seed=1)
    attach(model, config)
    train(model, batch)
    save_adapter(model, tmp_path / "adapter", base=base)
    return tmp_path / "adapter", model(**batch).logits


def change(directory, change):
    """Rewrite the weights of an adapter."""
    path = directory / "adapter_model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def test_a_reloaded_adapter_gives_equal_logits_head_included(saved, load, batch, config):
    directory, logits = saved
    model = load(seed=2)
    assert (model(**batch).logits - logits).abs().max() > 0.01
    assert load_adapter(model, directory) == config
    assert (model(**batch).logits - logits).abs().max() <= 1e-6


def test_the_files_are_small_and_name_the_base(saved, base):
    directory, _ = saved
    assert {path.name for path in directory.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert base_of(directory) == str(base)
    assert not any(
        "embeddings" in key and "weight" in key for key in load_file(directory / "adapter_model.safetensors")
    )


def test_saving_what_was_loaded_gives_the_same_files(saved, load, tmp_path, base):
    directory, _ = saved
    model = load(seed=3)
    load_adapter(model, directory)
    save_adapter(model, tmp_path / "again", base=base)
    texts = [(where / "adapter_config.json").read_bytes() for where in (directory, tmp_path / "again")]
    files = [load_file(where / "adapter_model.safetensors") for where in (directory, tmp_path / "again")]
    assert texts[0] == texts[1]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])


def test_a_loaded_adapter_is_detached_as_any_other(saved, load, batch):
    directory, _ = saved
    model = load(seed=1)
    plain = model.bert(batch["input_ids"]).last_hidden_state
    load_adapter(model, directory)
    detach(model)
    assert torch.equal(model.bert(batch["input_ids"]).last_hidden_state, plain)


def test_a_missing_weight_is_named_and_the_model_stays_as_it_was(saved, load, batch):
    directory, _ = saved
    key = sorted(load_file(directory / "adapter_model.safetensors"))[0]
    change(directory, lambda weights: weights.pop(key))
    model = load(seed=1)
    logits = model(**batch).logits
    with pytest.raises(UserError, match=rf"adapter_model\.safetensors: lacks {key}"):
        load_adapter(model, directory)
    assert attached(model) == {}
    assert torch.equal(model(**batch).logits, logits)
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_renamed_weight_is_named_with_what_is_there_instead(saved, load):
    directory, _ = saved
    key = sorted(load_file(directory / "adapter_model.safetensors"))[-1]
    change(directory, lambda weights: weights.update({f"{key}x": weights.pop(key)}))
    with pytest.raises(UserError, match=f"lacks {key}, but holds {key}x"):
        load_adapter(load(seed=1), directory)


def test_a_weight_too_many_is_named(saved, load):
    directory, _ = saved
    change(directory, lambda weights: weights.update(extra=torch.zeros(3)))
    with pytest.raises(UserError, match="holds extra, for which the model has no place"):
        load_adapter(load(seed=1), directory)


def test_a_weight_of_another_shape_is_named(saved, base):
    directory, _ = saved
    other = BertForSequenceClassification.from_pretrained(base, num_labels=3)
    with pytest.raises(UserError, match=r"classifier\S*\.weight is \[5, 14\], the model expects \[3, 14\]"):
        load_adapter(other, directory)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers"])
def test_a_base_of_another_size_is_refused(saved, make_model, field):
    directory, _ = saved
    config = make_model().config
    other = make_model(config=dataclasses.replace(config, **{field: 2 * getattr(config, field)}))
    with pytest.raises(
        UserError, match=rf"trained on a base with {field} \d+, this one has {getattr(other.config, field)}"
    ):
        load_adapter(other, directory, allow_other_base=True)
    assert attached(other) == {}


@pytest.mark.parametrize("part", ["embeddings.norm", "encoder.layers.1.attention.output", "pooler.dense"])
def test_a_base_with_other_weights_is_refused_unless_allowed(saved, load, batch, part):
    directory, logits = saved
    model = load(seed=1)
    with torch.no_grad():
        model.bert.get_submodule(part).weight.view(-1)[0] += 1e-3
    with pytest.raises(UserError, match=f"another base; the weights of its {part.split('.')[0]} differ"):
        load_adapter(model, directory)
    assert attached(model) == {}
    load_adapter(model, directory, allow_other_base=True)
    assert 0 < (model(**batch).logits - logits).abs().max() < 0.1


def test_the_file_must_be_whole(saved, load):
    directory, _ = saved
    path = directory / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"adapter_model\.safetensors: not a whole safetensors file"):
        load_adapter(load(seed=1), directory)
    path.unlink()
    with pytest.raises(UserError, match=r"adapter_model\.safetensors: no such file"):
        load_adapter(load(seed=1), directory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object, got list"),
        ("{}", "lacks the field 'kind'"),
        (
            '{"kind": "lore", "settings": {}}',
            "kind: expected one of frozen, bitfit, lora, pfeiffer, houlsby, got 'lore'",
        ),
        ('{"kind": "pfeiffer", "settings": {"rank": 3}}', "rank has no meaning for pfeiffer, only for lora"),
        ('{"kind": "pfeiffer", "settings": {"reduction": "wide"}}', "adapter_config.json: "),
        ('{"kind": "pfeiffer", "settings": 3}', "adapter_config.json: "),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(load, tmp_path, text, message):
    (tmp_path / "adapter_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_adapter(load(seed=1), tmp_path)


def test_a_directory_without_an_adapter_is_refused(load, tmp_path):
    with pytest.raises(UserError, match=r"adapter_config\.json: no such file"):
        load_adapter(load(seed=1), tmp_path)
    with pytest.raises(UserError, match=r"adapter_config\.json: no such file"):
        base_of(tmp_path)


def test_an_adapter_of_another_kind_is_refused(load, tmp_path):
    for kind in (PfeifferConfig(reduction=2), BitFitConfig()):
        model = load(seed=1)
        attach(model, kind)
        save_adapter(model, tmp_path / kind.kind)
    (tmp_path / "bitfit/adapter_config.json").replace(tmp_path / "pfeiffer/adapter_config.json")
    with pytest.raises(UserError, match=r"lacks bert/\S+, but holds bert/"):
        load_adapter(load(seed=1), tmp_path / "pfeiffer")


def test_a_pooler_that_the_checkpoint_lacked_is_part_of_the_head(load, batch, train, tmp_path):
    def fresh(seed):
        model = load(seed)
        model.bert.pooler.dense.reset_parameters()
        model.fresh_weights = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
        return model

    model = fresh(seed=1)
    before = model.bert.pooler.dense.weight.detach().clone()
    attach(model, LoraConfig())
    train(model, batch)
    assert not torch.equal(model.bert.pooler.dense.weight, before)
    save_adapter(model, tmp_path / "adapter")
    other = fresh(seed=2)
    load_adapter(other, tmp_path / "adapter")
    assert torch.equal(other(**batch).logits, model(**batch).logits)


def test_a_task_adapter_stacks_on_a_domain_adapter(base, load, batch, train, tmp_path):
    domain = BertForPreTraining.from_pretrained(base)
    attach(domain, PfeifferConfig(reduction=2))
    train(domain, {**batch, "labels": batch["input_ids"]})
    save_adapter(domain, tmp_path / "domain")

    model = load(seed=1)
    with pytest.raises(UserError, match="lacks classifier"):
        load_adapter(model, tmp_path / "domain")
    load_adapter(model, tmp_path / "domain", name="domain", with_head=False)
    attach(model, LoraConfig(), "task")
    train(model, batch)
    save_adapter(model, tmp_path / "task", name="task")

    again = load(seed=2)
    with pytest.raises(UserError, match="the weights of its adapters differ"):
        load_adapter(again, tmp_path / "task")
    load_adapter(again, tmp_path / "domain", name="domain", with_head=False)
    load_adapter(again, tmp_path / "task", name="task")
    assert torch.equal(again(**batch).logits, model(**batch).logits)


def test_an_adapter_fits_a_model_that_has_no_pooler(base, tmp_path, batch, train):
    model = BertForPreTraining.from_pretrained(base)
    attach(model, PfeifferConfig(reduction=2))
    train(model, {**batch, "labels": batch["input_ids"]})
    save_adapter(model, tmp_path)
    tagger = BertForTokenClassification.from_pretrained(base, num_labels=3).eval()
    load_adapter(tagger, tmp_path, with_head=False)
    expected = model(batch["input_ids"]).last_hidden_state
    assert torch.equal(tagger(batch["input_ids"]).last_hidden_state, expected)


def test_a_failed_save_leaves_the_old_file(saved, load, config, monkeypatch, batch, train):
    directory, logits = saved
    model = load(seed=1)
    attach(model, config)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_adapter(model, directory)
    other = load(seed=2)
    load_adapter(other, directory)
    assert torch.equal(other(**batch).logits, logits)


def test_settings_in_the_file_are_readable(load, tmp_path):
    model = load(seed=1)
    attach(model, PfeifferConfig(reduction=2))
    save_adapter(model, tmp_path, base="some/model")
    assert json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8")) == {
        "kind": "pfeiffer",
        "settings": {"reduction": 2, "activation": "relu"},
        "base_model_name_or_path": "some/model",
    }
