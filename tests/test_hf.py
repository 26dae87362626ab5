"""Checkpoints: transformers loads ours as it is, we load theirs under any spelling, and what is broken is refused."""

import dataclasses
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import minibert
from minibert import AttentionConfig, BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, UserError
from minibert.attention import SCORES
from minibert.hf import NAMES, hugging_face_name

CONFIG = BertConfig(
    vocab_size=101,
    hidden_size=21,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=37,
    max_position_embeddings=43,
)
MODELS = [name for name in minibert.__all__ if name.startswith("Bert") and name != "BertConfig"]
WORDS, DECODER, BIAS = (
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.bias",
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def model() -> BertForPreTraining:
    return randomise(BertForPreTraining(CONFIG))


@pytest.fixture
def checkpoint(model, tmp_path) -> Path:
    """The directory that `model` was saved to."""
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def randomise(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def ids() -> Tensor:
    return torch.randint(CONFIG.vocab_size, (2, 7))


def weights_of(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def rewrite(directory: Path, weights: dict[str, Tensor]) -> None:
    """Put other weights into a saved model."""
    save_file({name: tensor.clone() for name, tensor in weights.items()}, directory / "model.safetensors")


def change_config(directory: Path, **fields) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8")) | fields
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


def pickled(directory: Path, weights, **options) -> None:
    """The same model as a pytorch_model.bin."""
    (directory / "model.safetensors").unlink()
    torch.save(weights, directory / "pytorch_model.bin", **options)


def split_into_shards(directory: Path, count: int = 3) -> list[str]:
    """The same model in `count` safetensors files and an index."""
    weights = weights_of(directory)
    (directory / "model.safetensors").unlink()
    files = [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    places = {name: files[number % count] for number, name in enumerate(weights)}
    for file in files:
        save_file({name: weights[name] for name, place in places.items() if place == file}, directory / file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return files


def assert_equal_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    expected = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, expected.pop(name)), name
    assert expected == {}


# ours -> transformers -> ours


@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_what_we_save_without_missing_or_unexpected_weights(name, tmp_path):
    ours = randomise(getattr(minibert, name)(dataclasses.replace(CONFIG, id2label={0: "a", 1: "b", 2: "c"})))
    ours.save_pretrained(tmp_path / "ours")
    theirs, report = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    theirs.save_pretrained(tmp_path / "theirs")
    again = getattr(minibert, name).from_pretrained(tmp_path / "theirs")
    assert_equal_weights(again, ours)
    assert again.config == ours.config


def test_auto_model_finds_the_encoder_in_what_we_save(model, checkpoint):
    theirs, inputs = transformers.AutoModel.from_pretrained(checkpoint).eval(), ids()
    assert isinstance(theirs, transformers.BertModel)
    assert torch.allclose(theirs(inputs).last_hidden_state, model.bert(inputs).last_hidden_state, atol=1e-5)


def test_every_field_of_their_config_that_shapes_a_model_is_written(checkpoint):
    shapes_none = {"transformers_version", "_name_or_path", "use_cache", "bos_token_id", "eos_token_id", "problem_type"}
    generic = {"output_hidden_states", "return_dict", "output_attentions", "chunk_size_feed_forward"}
    only_encoders = {"is_decoder", "add_cross_attention", "is_encoder_decoder"}
    theirs = transformers.BertConfig.from_pretrained(checkpoint).to_dict()
    written = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    assert set(theirs) - set(written) <= shapes_none | generic | only_encoders
    assert all(json.loads(json.dumps(theirs[name])) == value for name, value in written.items())
    assert written["architectures"] == ["BertForPreTraining"]
    assert written["model_type"] == "bert"


@pytest.mark.parametrize("name", MODELS)
def test_what_we_save_we_load_to_the_same_bits(name, tmp_path):
    ours = randomise(getattr(minibert, name)(CONFIG))
    ours.save_pretrained(tmp_path)
    assert_equal_weights(getattr(minibert, name).from_pretrained(tmp_path), ours)


def test_a_tied_decoder_and_the_bias_are_written_once(checkpoint):
    weights = weights_of(checkpoint)
    assert WORDS in weights
    assert [name for name in weights if name.startswith("cls.predictions.") and "transform" not in name] == [BIAS]


def test_a_decoder_of_its_own_is_written_and_read_back(tmp_path):
    ours = randomise(BertForMaskedLM(dataclasses.replace(CONFIG, tie_word_embeddings=False)))
    ours.save_pretrained(tmp_path)
    assert not torch.equal(weights_of(tmp_path)[DECODER], weights_of(tmp_path)[WORDS])
    assert_equal_weights(BertForMaskedLM.from_pretrained(tmp_path), ours)


def test_half_precision_weights_are_saved_as_float32_and_files_of_any_precision_are_read(model, checkpoint):
    model.half().save_pretrained(checkpoint)
    assert {tensor.dtype for tensor in weights_of(checkpoint).values()} == {torch.float32}
    rewrite(checkpoint, {name: tensor.bfloat16() for name, tensor in weights_of(checkpoint).items()})
    loaded = BertForPreTraining.from_pretrained(checkpoint)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_names_of_labels_are_kept_by_both_libraries(tmp_path):
    named = dataclasses.replace(CONFIG, id2label={0: "schlecht", 1: "größer", 2: "好"})
    minibert.BertForSequenceClassification(named).save_pretrained(tmp_path / "ours")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert theirs.config.id2label == named.id2label
    assert theirs.config.label2id == {"schlecht": 0, "größer": 1, "好": 2}
    theirs.save_pretrained(tmp_path / "theirs")
    assert minibert.BertForSequenceClassification.from_pretrained(tmp_path / "theirs").config.id2label == named.id2label


@pytest.mark.parametrize(
    "attention",
    [{"score": score} for score in SCORES if score != "scaled_dot"] + [{"window": 3}, {"weights": "hard"}],
    ids=str,
)
def test_a_model_with_other_attention_comes_back_and_transformers_refuses_it(attention, tmp_path):
    ours = randomise(BertModel(dataclasses.replace(CONFIG, attention=AttentionConfig(**attention))))
    ours.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path)
    assert again.config.attention == AttentionConfig(**attention)
    assert_equal_weights(again, ours)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == "minibert"
    with pytest.raises(ValueError, match="`minibert` but Transformers does not recognize this architecture"):
        transformers.AutoModel.from_pretrained(tmp_path)


def test_saving_again_replaces_what_was_there(model, checkpoint):
    randomise(model).save_pretrained(checkpoint)
    assert_equal_weights(BertForPreTraining.from_pretrained(checkpoint), model)


def test_the_table_maps_every_parameter_to_the_name_that_transformers_gives_it():
    with torch.device("meta"):
        ours, theirs = (
            BertForPreTraining(CONFIG),
            transformers.BertForPreTraining(transformers.BertConfig.from_dict(CONFIG.to_dict())),
        )
    shapes = {name: parameter.shape for name, parameter in theirs.named_parameters()}
    assert {hugging_face_name(name): parameter.shape for name, parameter in ours.named_parameters()} == shapes
    assert len({theirs for _, theirs in NAMES}) == len({ours for ours, _ in NAMES}) == len(NAMES)


# the spellings of one checkpoint


def in_old_names(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


SPELLINGS = {
    "as transformers does": lambda name: name,
    "gamma and beta": in_old_names,
    "in DataParallel": lambda name: f"module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "compiled in DataParallel": lambda name: f"module._orig_mod.{name}",
    "DataParallel compiled": lambda name: f"_orig_mod.module.{name}",
    "with one compiled layer": lambda name: name.replace("layer.0.", "layer.0._orig_mod."),
    "under FSDP": lambda name: name.replace("layer.", "layer._fsdp_wrapped_module."),
    "all at once": lambda name: f"module._orig_mod.{in_old_names(name)}",
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("kind", ["safetensors", "bin", "old bin"])
def test_every_spelling_of_a_checkpoint_gives_the_same_weights_and_a_clean_file(spell, kind, model, checkpoint, caplog):
    spelt = {spell(name): tensor for name, tensor in weights_of(checkpoint).items()}
    if kind == "safetensors":
        rewrite(checkpoint, spelt)
    else:
        pickled(checkpoint, spelt, _use_new_zipfile_serialization=kind == "bin")
    loaded = BertForPreTraining.from_pretrained(checkpoint)
    assert_equal_weights(loaded, model)
    assert caplog.text == ""
    loaded.save_pretrained(checkpoint / "again")
    assert set(weights_of(checkpoint / "again")) == {hugging_face_name(name) for name, _ in model.named_parameters()}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_an_encoder_is_found_with_and_without_its_prefix(prefix, model, tmp_path):
    model.bert.save_pretrained(tmp_path)
    bare = weights_of(tmp_path)
    assert not any(name.startswith("bert.") for name in bare)
    rewrite(tmp_path, {prefix + name: tensor for name, tensor in bare.items()})
    assert_equal_weights(BertModel.from_pretrained(tmp_path), model.bert)
    assert_equal_weights(BertForPreTraining.from_pretrained(tmp_path).bert, model.bert)


def test_position_ids_in_a_checkpoint_are_passed_over_and_we_write_none(model, checkpoint, caplog):
    assert not any("position_ids" in name for name in weights_of(checkpoint))
    positions = {"bert.embeddings.position_ids": torch.arange(43)[None]}
    rewrite(checkpoint, weights_of(checkpoint) | positions)
    assert_equal_weights(BertForPreTraining.from_pretrained(checkpoint), model)
    assert caplog.text == ""


def test_a_tied_decoder_may_be_in_the_checkpoint_as_well_and_its_bias_under_either_name(model, checkpoint):
    weights = weights_of(checkpoint)
    weights |= {DECODER: weights[WORDS], "cls.predictions.decoder.bias": weights.pop(BIAS)}
    rewrite(checkpoint, weights)
    loaded = BertForPreTraining.from_pretrained(checkpoint)
    assert_equal_weights(loaded, model)
    assert loaded.mlm.decoder.weight is loaded.bert.embeddings.tokens.weight


def test_of_the_two_biases_of_a_decoder_of_its_own_the_one_that_transformers_adds_is_read(tmp_path):
    theirs = transformers.BertForMaskedLM(
        transformers.BertConfig.from_dict(CONFIG.to_dict() | {"tie_word_embeddings": False})
    ).eval()
    torch.nn.init.normal_(theirs.cls.predictions.bias)
    torch.nn.init.normal_(theirs.cls.predictions.decoder.bias)
    theirs.save_pretrained(tmp_path)
    ours, inputs = BertForMaskedLM.from_pretrained(tmp_path).eval(), ids()
    assert torch.allclose(ours(inputs).logits, theirs(inputs).logits, atol=1e-5)


# what a checkpoint lacks or holds beside


def test_a_pooler_and_a_head_that_are_not_there_are_named_in_one_warning(tmp_path, caplog):
    BertForMaskedLM(CONFIG).save_pretrained(tmp_path)
    minibert.BertForSequenceClassification.from_pretrained(tmp_path)
    (warning,) = caplog.messages
    assert "has no weights for bert.pooler.dense, classifier: they start fresh and must be trained" in warning


def test_heads_that_are_not_asked_for_are_left_out_without_a_word(model, checkpoint, caplog):
    assert_equal_weights(BertModel.from_pretrained(checkpoint), model.bert)
    assert caplog.text == ""


def test_an_encoder_weight_that_is_not_there_is_refused_by_name(checkpoint):
    weights = weights_of(checkpoint)
    del weights["bert.encoder.layer.1.output.dense.bias"], weights["bert.encoder.layer.1.output.dense.weight"]
    rewrite(checkpoint, weights)
    with pytest.raises(
        UserError, match=r"lacks the encoder weight bert\.encoder\.layer\.1\.output\.dense.* \(and 1 more\)"
    ):
        BertForPreTraining.from_pretrained(checkpoint)


def test_layers_that_the_model_lacks_are_named_in_a_warning(checkpoint, caplog):
    shallow = BertModel.from_pretrained(checkpoint, num_hidden_layers=1)
    assert len(shallow.encoder.layers) == 1
    assert "holds 16 weights that the model lacks, such as bert.encoder.layer.1." in caplog.text


def test_a_weight_of_another_shape_is_refused_with_both_shapes(checkpoint):
    change_config(checkpoint, vocab_size=103)
    with pytest.raises(UserError, match=r"word_embeddings\.weight is \[101, 21\], the model expects \[103, 21\]"):
        BertForPreTraining.from_pretrained(checkpoint)


def test_a_second_segment_cannot_be_had_by_an_override_alone(tmp_path):
    BertModel(dataclasses.replace(CONFIG, type_vocab_size=1)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"token_type_embeddings\.weight is \[1, 21\], the model expects \[2, 21\]"):
        BertModel.from_pretrained(tmp_path, type_vocab_size=2)


def test_another_number_of_labels_starts_a_fresh_head_on_a_pretrained_encoder(model, checkpoint):
    classifier = minibert.BertForSequenceClassification.from_pretrained(checkpoint, num_labels=5)
    assert classifier.classifier.linear.weight.shape == (5, 21)
    assert classifier.config.label_names == [f"LABEL_{number}" for number in range(5)]
    assert_equal_weights(classifier.bert, model.bert)


def test_a_trained_head_with_another_number_of_labels_is_refused_with_both(tmp_path):
    minibert.BertForSequenceClassification(CONFIG).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"classifier\.weight is \[2, 21\], the model expects \[3, 21\]"):
        minibert.BertForSequenceClassification.from_pretrained(tmp_path, num_labels=3)


def test_spans_have_two_ends_whatever_the_labels_of_the_checkpoint(tmp_path):
    minibert.BertForSequenceClassification(dataclasses.replace(CONFIG, num_labels=5)).save_pretrained(tmp_path / "mnli")
    minibert.BertForQuestionAnswering.from_pretrained(tmp_path / "mnli").save_pretrained(tmp_path / "qa")
    _, report = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "qa", output_loading_info=True)
    assert not any(report.values()), report


# what is broken or would run code


def test_shards_are_read_as_one_and_a_file_that_the_index_does_not_name_is_not_read(model, checkpoint):
    split_into_shards(checkpoint)
    (checkpoint / "model-00004-of-00004.safetensors").write_bytes(b"left behind")
    assert_equal_weights(BertForPreTraining.from_pretrained(checkpoint), model)


def test_a_shard_that_is_missing_is_refused_by_name(checkpoint):
    shard = split_into_shards(checkpoint)[1]
    (checkpoint / shard).unlink()
    with pytest.raises(UserError, match=f"names the shard {shard}, which is not there"):
        BertForPreTraining.from_pretrained(checkpoint)


def test_a_shard_that_is_cut_short_is_refused_by_name(checkpoint):
    shard = split_into_shards(checkpoint)[2]
    whole = (checkpoint / shard).read_bytes()
    (checkpoint / shard).write_bytes(whole[:-1])
    with pytest.raises(UserError, match=f"{shard}: not a whole safetensors file"):
        BertForPreTraining.from_pretrained(checkpoint)


def test_a_shard_without_a_weight_that_the_index_promises_is_refused_by_name(checkpoint):
    shard = split_into_shards(checkpoint)[0]
    weights = load_file(checkpoint / shard)
    lost = sorted(weights)[0]
    save_file({name: tensor for name, tensor in weights.items() if name != lost}, checkpoint / shard)
    with pytest.raises(UserError, match=f"{shard} lacks the weight {lost}"):
        BertForPreTraining.from_pretrained(checkpoint)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../a"}}']
)
def test_an_index_that_is_none_is_refused_by_name(text, checkpoint):
    split_into_shards(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        BertForPreTraining.from_pretrained(checkpoint)


@pytest.mark.parametrize("kind", ["safetensors", "bin", "old bin"])
def test_a_file_cut_short_anywhere_is_refused_by_name(kind, checkpoint):
    if kind != "safetensors":
        pickled(checkpoint, weights_of(checkpoint), _use_new_zipfile_serialization=kind == "bin")
    path = checkpoint / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin")
    whole = path.read_bytes()
    cuts = {0, 1, 2, 7, 8, 9, 100, 1009, len(whole) - 1, *range(0, len(whole), max(1, len(whole) // 61))}
    for length in cuts:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"{path.name}: (not a whole|holds more than tensors)"):
            BertForPreTraining.from_pretrained(checkpoint)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:Defining your", "ignore:TypedStorage")
def test_a_damaged_pickle_is_refused_or_read_but_never_ends_in_another_error(legacy, checkpoint):
    pickled(checkpoint, weights_of(checkpoint), _use_new_zipfile_serialization=not legacy)
    path = checkpoint / "pytorch_model.bin"
    whole = path.read_bytes()
    refused = 0
    for place in torch.randint(3000, (61,)).tolist():
        path.write_bytes(whole[:place] + bytes(reversed(whole[place : place + 5])) + whole[place + 5 :])
        try:
            BertForPreTraining.from_pretrained(checkpoint)
        except UserError:
            refused += 1
    assert refused > 0


class Bomb:
    """What a pickle of it does when it is read: it makes a file."""

    def __init__(self, sentinel: Path):
        self.sentinel = sentinel

    def __reduce__(self):
        return os.mkdir, (str(self.sentinel),)


@pytest.mark.parametrize("kind", ["plain pickle", "bin", "old bin", "shard"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(kind, checkpoint, tmp_path):
    contents = weights_of(checkpoint) | {"extra": Bomb(tmp_path / "sentinel")}
    if kind == "plain pickle":
        (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(contents, protocol=2))
        (checkpoint / "model.safetensors").unlink()
    else:
        pickled(checkpoint, contents, _use_new_zipfile_serialization=kind != "old bin")
    if kind == "shard":
        (checkpoint / "pytorch_model.bin").rename(checkpoint / "pytorch_model-00001-of-00001.bin")
        index = json.dumps({"weight_map": {"extra": "pytorch_model-00001-of-00001.bin"}})
        (checkpoint / "pytorch_model.bin.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(
        UserError, match=r"\.bin: holds more than tensors, or is damaged; refused, since it could run code"
    ):
        BertForPreTraining.from_pretrained(checkpoint)
    assert not (tmp_path / "sentinel").exists()


def test_safetensors_are_preferred_to_a_pickle_beside_them(model, checkpoint, tmp_path):
    torch.save({"extra": Bomb(tmp_path / "sentinel")}, checkpoint / "pytorch_model.bin")
    assert_equal_weights(BertForPreTraining.from_pretrained(checkpoint), model)
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize("contents", [[torch.zeros(2)], {"step": 3}, {"model": {"weight": torch.zeros(2)}}], ids=str)
def test_a_pickle_of_something_else_is_refused(contents, checkpoint):
    pickled(checkpoint, contents)
    with pytest.raises(UserError, match=r"pytorch_model\.bin: expected a dictionary of tensors"):
        BertForPreTraining.from_pretrained(checkpoint)


def test_a_directory_without_weights_is_refused_with_what_was_expected(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"expected model\.safetensors or pytorch_model\.bin, found neither"):
        BertForPreTraining.from_pretrained(checkpoint)


def test_a_directory_that_is_not_there_is_refused_by_its_name(tmp_path):
    with pytest.raises(UserError, match="absent"):
        BertModel.from_pretrained(tmp_path / "absent")
