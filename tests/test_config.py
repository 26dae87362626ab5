"""The config: what it holds, what it refuses, and what it reads and writes as config.json."""

import dataclasses
import json

import pytest

from minibert import AttentionConfig, BertConfig, UserError


def test_the_defaults_are_bert_base():
    config = BertConfig()
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (12, 768, 12)
    assert (config.intermediate_size, config.vocab_size, config.max_position_embeddings) == (3072, 30522, 512)
    assert config.is_published_bert


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("hidden_size", 0, "PositiveInt"),
        ("hidden_size", "768", "PositiveInt"),
        ("hidden_size", 768.0, "PositiveInt"),
        ("num_attention_heads", 0, "PositiveInt"),
        ("vocab_size", True, "PositiveInt"),
        ("hidden_dropout_prob", 1.5, "ClosedUnitInterval"),
        ("classifier_dropout", -0.1, "ClosedUnitInterval or NoneType"),
        ("layer_norm_eps", float("nan"), "PositiveFloat"),
        ("hidden_act", None, "str"),
        ("tie_word_embeddings", "yes", "bool"),
        ("id2label", ["a", "b"], "dict or NoneType"),
        ("attention", "hard", "AttentionConfig"),
    ],
)
def test_a_field_of_another_type_or_out_of_range_is_refused_by_name(field, value, expected):
    with pytest.raises(UserError, match=f"^{field}: expected {expected}, got {value!r}".replace("[", r"\[")):
        BertConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("score", "dott", "dot or scaled_dot or cosine or general or additive"),
        ("weights", "sharp", "soft or hard"),
        ("window", -1, "NonNegativeInt or NoneType"),
        ("global_tokens", 1.5, "NonNegativeInt"),
    ],
)
def test_attention_refuses_what_it_does_not_know(field, value, expected):
    with pytest.raises(UserError, match=f"^{field}: expected {expected}, got {value!r}"):
        AttentionConfig(**{field: value})


def test_heads_that_do_not_divide_the_hidden_size_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="num_attention_heads: 3 heads do not divide a hidden_size of 23"):
        BertConfig(hidden_size=23, num_attention_heads=3)


def test_a_padding_id_outside_the_vocabulary_is_refused():
    with pytest.raises(UserError, match="pad_token_id: expected less than a vocab_size of 7, got 7"):
        BertConfig(vocab_size=7, pad_token_id=7)


def test_names_of_labels_set_their_number_and_stay_in_order():
    config = BertConfig(id2label={"1": "good", "0": "bad", "2": "none"}, num_labels=5)
    assert config.num_labels == 3
    assert config.label_names == ["bad", "good", "none"]
    assert BertConfig(num_labels=3).label_names == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_labels_that_are_not_numbered_from_zero_are_refused():
    with pytest.raises(UserError, match=r"id2label: expected the numbers 0 to 1, got \[1, 2\]"):
        BertConfig(id2label={1: "a", 2: "b"})


EXAMPLES = [
    BertConfig(),
    BertConfig(vocab_size=101, hidden_size=21, num_attention_heads=3, type_vocab_size=5, pad_token_id=2),
    BertConfig(hidden_act="gelu_new", layer_norm_eps=1e-7, classifier_dropout=0.3, tie_word_embeddings=False),
    BertConfig(id2label={0: "schlecht", 1: "größer", 2: "好"}),
    BertConfig(attention=AttentionConfig(score="additive", weights="hard", window=3, global_tokens=2)),
]


@pytest.mark.parametrize("config", EXAMPLES)
def test_config_json_is_read_back_to_an_equal_config(config, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    named = dataclasses.replace(config, id2label=dict(enumerate(config.label_names)))
    assert BertConfig.from_file(path) == named


def test_only_what_published_bert_lacks_changes_the_model_type():
    assert BertConfig().to_dict()["model_type"] == "bert"
    assert "attention" not in BertConfig().to_dict()
    for change in ({"score": "dot"}, {"weights": "hard"}, {"window": 5}):
        assert BertConfig(attention=AttentionConfig(**change)).to_dict()["model_type"] == "minibert"


def test_overrides_win_over_the_file():
    fields = {"hidden_size": 21, "num_attention_heads": 3, "id2label": {"0": "a", "1": "b"}}
    assert BertConfig.from_dict(fields, hidden_size=33).hidden_size == 33
    assert BertConfig.from_dict(fields, num_labels=5).label_names == [f"LABEL_{number}" for number in range(5)]
    assert BertConfig.from_dict(fields, num_labels=2).label_names == ["a", "b"]
    assert BertConfig.from_dict(fields, num_labels=7, id2label={0: "x"}).label_names == ["x"]


def test_fields_of_other_tools_are_ignored_and_null_means_the_default():
    fields = {"use_cache": True, "transformers_version": "5.0", "pruned_heads": {}, "pad_token_id": None}
    assert BertConfig.from_dict(fields) == BertConfig()


def test_an_unknown_override_is_refused():
    with pytest.raises(UserError, match="BertConfig has no field nmu_labels"):
        BertConfig.from_dict({}, nmu_labels=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "roberta"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
    ],
)
def test_a_config_of_another_model_is_refused(field, value):
    with pytest.raises(UserError, match=f"{field}: expected .*, got {value!r}"):
        BertConfig.from_dict({field: value})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"hidden_size": "768"}',
        '{"num_attention_heads": 0}',
        '{"attention": {"scoer": "dot"}}',
        '{"attention": 3}',
        '{"id2label": 3}',
        '{"id2label": {"good": 1}}',
        '{"model_type": "gpt2"}',
    ],
)
def test_a_faulty_config_json_is_refused_by_its_name(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json: "):
        BertConfig.from_file(tmp_path / "config.json")


def test_a_config_json_that_is_not_utf_8_is_refused_by_its_name(tmp_path):
    (tmp_path / "config.json").write_bytes('{"a": "ü"}'.encode("latin-1"))
    with pytest.raises(UserError, match=r"config\.json: .*utf-8"):
        BertConfig.from_file(tmp_path / "config.json")


@pytest.mark.parametrize("directory", ["absent", "a-file"])
def test_a_missing_config_json_is_named(directory, tmp_path):
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json: no such file; expected a model directory"):
        BertConfig.from_file(tmp_path / directory / "config.json")
