"""Labelled rows: labels in an order that never changes, every row counted once, the longer text cut."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from minibert import BertConfig, BertForSequenceClassification, UserError
from minibert.data.ragged import Inputs
from minibert.data.sources import Row
from minibert.data.tasks import (
    Examples,
    TaskSettings,
    Texts,
    encode,
    epoch_batches,
    label_names,
    load_task,
    read_examples,
    read_texts,
    save_task,
)
from minibert.data.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(corpus: Path) -> Tokenizer:
    return load_tokenizer(corpus)


def labelled(*labels: Any) -> list[Row]:
    return [Row({"text": "t", "label": label}, f"rows.jsonl:{line}") for line, label in enumerate(labels, start=1)]


def examples(lengths: list[int]) -> Examples:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.full(offsets[-1], 2)
    return Examples(Inputs(tokens, np.zeros_like(tokens), offsets), np.arange(len(lengths)) % 3)


def only(inputs: Inputs) -> tuple[list[int], list[int]]:
    """Tokens and segments where there is one input."""
    assert inputs.offsets.tolist() == [0, len(inputs.input_ids)]
    return inputs.input_ids.tolist(), inputs.token_type_ids.tolist()


def test_labels_are_sorted_whatever_the_order_of_the_rows() -> None:
    assert label_names(labelled("no", "yes", "maybe", "no"), "label") == ["maybe", "no", "yes"]
    assert label_names(labelled("yes", "maybe", "no"), "label") == ["maybe", "no", "yes"]


def test_labels_have_the_same_order_under_every_hash_seed(tmp_path: Path) -> None:
    words = [f"label {number * 7919 % 211}" for number in range(31)]
    path = small.write_rows(tmp_path / "rows.jsonl", [{"text": "t", "label": word} for word in words])
    program = (
        "import sys; from minibert.data.sources import read_rows; from minibert.data.tasks import label_names; "
        "print(set('abcdefgh'), file=sys.stderr); print(label_names(read_rows(sys.argv[1]), 'label'))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    (labels, letters), (other_labels, other_letters) = (run.communicate(timeout=100) for run in runs)
    assert letters != other_letters  # sets did come in other orders
    assert labels == other_labels == f"{sorted(words)}\n".encode()


def test_numbers_are_sorted_by_value_and_before_words() -> None:
    assert label_names(labelled(10, 9, -1, 9), "label") == ["-1", "9", "10"]
    assert label_names(labelled("10", "9", "-1", "n/a"), "label") == ["-1", "9", "10", "n/a"]
    assert label_names(labelled(1.0, 0.0), "label") == ["0", "1"]  # as parquet has whole numbers beside nulls
    assert label_names(labelled(True, False), "label") == ["0", "1"]
    assert label_names(labelled("07", "7"), "label") == ["07", "7"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 0.5], "rows.jsonl:2: label is 0.5; expected a class"),
        (["3.4", "2.0", "1"], "rows.jsonl:1: label is 3.4; expected classes, not numbers with fractions"),
        ([1, float("nan")], "rows.jsonl:2: label is nan"),
        ([1, None], "rows.jsonl:2: label is null; expected a string or a whole number"),
        (["a", ""], 'rows.jsonl:2: label is ""; expected'),
        ([1, [2]], r"rows.jsonl:2: label is [2]; expected"),
        ([1, 1], "the training rows: 1 different labels in 'label'; expected two or more"),
        ([], "the training rows: 0 different labels"),
    ],
)
def test_what_is_no_label_is_refused_with_its_line(labels: list[Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        label_names(labelled(*labels), "label")
    assert message in str(error.value)


def test_versions_among_words_are_classes() -> None:
    assert label_names(labelled("3.4", "2.0", "other"), "label") == ["2.0", "3.4", "other"]
    assert label_names(labelled("1.0", "0.0"), "label") == ["0.0", "1.0"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "The river.", "label": "new"}, "label 'new' does not occur in training; expected bright, dark"),
        ({"text": "The river.", "sentiment": "dark"}, "no field 'label'; this row has text, sentiment"),
        ({"body": "The river.", "label": "dark"}, "no field 'text'; this row has body, label"),
        ({"text": None, "label": "dark"}, "text is null; expected a string"),
        ({"text": 3, "label": "dark"}, "text is 3; expected a string"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    tmp_path: Path, tokenizer: Tokenizer, row: dict[str, Any], message: str
) -> None:
    rows: list[dict[str, Any]] = [*small.rows(0, 4), row]
    path = small.write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError) as error:
        read_examples(str(path), TaskSettings("", ""), ["bright", "dark"], tokenizer)
    assert str(error.value) == f"{path}:5: {message}"


def test_a_source_without_rows_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(UserError, match=r"rows\.jsonl: no rows; expected some with the fields 'text' and 'label'"):
        read_examples(str(tmp_path / "rows.jsonl"), TaskSettings("", ""), ["a", "b"], tokenizer)


def test_every_row_counts_one_without_text_too(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"text": text, "label": "dark"} for text in ("", " ", "\u200d", "\x00", "The river.")]
    path = small.write_rows(tmp_path / "rows.jsonl", rows)
    read = read_examples(str(path), TaskSettings("", ""), ["bright", "dark"], tokenizer)
    assert read.inputs.lengths.tolist() == [2, 2, 2, 2, 5]
    assert read.labels.tolist() == [1] * 5


def test_pairs_are_read_from_both_fields(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = small.write_rows(tmp_path / "rows.jsonl", [{"a": "the river", "b": "the lamp", "y": 1}])
    settings = TaskSettings("", "", text="a", text_pair="b", label="y")
    ids, types = only(read_examples(str(path), settings, ["0", "1"], tokenizer).inputs)
    pieces = [tokenizer.id_to_token(id_) for id_ in ids]
    assert pieces == ["[CLS]", "the", "river", "[SEP]", "the", "lamp", "[SEP]"]
    assert types == [0, 0, 0, 0, 1, 1, 1]
    assert read_texts(Row({"a": "x"}, "f:1"), "a", None) == Texts("x", None)
    with pytest.raises(UserError, match="f:1: no field 'b'; this row has a"):
        read_texts(Row({"a": "x"}, "f:1"), "a", "b")


@given(st.integers(0, 23), st.integers(0, 23), st.integers(5, 31))
def test_the_longer_text_of_a_pair_loses_its_end(corpus: Path, first: int, second: int, most: int) -> None:
    tokenizer = load_tokenizer(corpus)
    words = sorted(piece for piece in tokenizer.get_vocab() if piece.isalpha())  # each is one token
    a = [words[number % 11] for number in range(first)]
    b = [words[11 + number % 11] for number in range(second)]
    ids, types = only(encode(tokenizer, [Texts(" ".join(a), " ".join(b))], max_length=most))
    while len(a) + len(b) + 3 > most:
        tie = a if first <= second else b  # the one that was shorter
        (tie if len(a) == len(b) else max(a, b, key=len)).pop()
    assert [tokenizer.id_to_token(id_) for id_ in ids] == ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    assert types == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_encoding_leaves_the_tokenizer_as_it_was(tokenizer: Tokenizer) -> None:
    assert len(encode(tokenizer, [Texts("the river " * 50, None)], max_length=11).input_ids) == 11
    assert tokenizer.truncation is None
    assert len(tokenizer.encode("the river " * 50).ids) == 102


def test_special_tokens_in_a_text_are_words(tokenizer: Tokenizer) -> None:
    ids, _ = only(encode(tokenizer, [Texts("a [SEP] b [MASK]", None)], max_length=31))
    special = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]")]
    assert [id_ for id_ in ids if id_ in special] == special[:2]


@pytest.mark.parametrize(("pair", "least"), [(None, 3), ("other", 5)])
def test_a_length_without_room_for_text_is_refused(pair: str | None, least: int) -> None:
    assert TaskSettings("", "", text_pair=pair, max_length=least).max_length == least
    with pytest.raises(UserError, match=f"task.max_length is {least - 1}; expected {least} at least"):
        TaskSettings("", "", text_pair=pair, max_length=least - 1)


@given(st.lists(st.integers(2, 97), min_size=1, max_size=211), st.integers(1, 37), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_row_once(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(examples(lengths), size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // size)
    assert max(map(len, batches)) <= size
    assert sum(len(batch) < size for batch in batches) <= 1


def test_an_epoch_is_a_function_of_its_arguments() -> None:
    given_rows = examples(np.random.default_rng(0).integers(2, 97, 211).tolist())

    def told(seed: int, epoch: int) -> list[list[int]]:
        np.random.seed(seed * 7 + epoch)
        return [batch.tolist() for batch in epoch_batches(given_rows, 7, seed=seed, epoch=epoch)]

    orders = {(seed, epoch): told(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len({str(order) for order in orders.values()}) == 9
    assert all(told(*key) == order for key, order in orders.items())


def test_batches_hold_rows_of_like_length_and_are_in_no_order_of_length() -> None:
    lengths = np.random.default_rng(1).integers(2, 127, 2003)
    batches = epoch_batches(examples(lengths.tolist()), 16, seed=3, epoch=0)
    widths = [int(lengths[batch].max()) for batch in batches]
    padded = sum(width * len(batch) for width, batch in zip(widths, batches, strict=True))
    mixed = sum(lengths[rows].max() * len(rows) for rows in np.array_split(np.arange(2003), len(batches)))
    assert 1 - lengths.sum() / padded < 0.05
    assert 1 - lengths.sum() / mixed > 0.4
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.2


def test_eight_rows_make_one_batch_of_32() -> None:
    [batch] = epoch_batches(examples([5] * 8), 32, seed=0, epoch=0)
    assert sorted(batch.tolist()) == list(range(8))


def test_names_of_labels_are_kept_with_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = label_names(labelled("no", "yes", "maybe"), "label")
    shape = BertConfig(
        vocab_size=11,
        hidden_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=7,
        id2label=dict(enumerate(names)),
    )
    BertForSequenceClassification(shape).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert saved["id2label"] == {"0": "maybe", "1": "no", "2": "yes"}
    assert saved["label2id"] == {"maybe": 0, "no": 1, "yes": 2}
    assert BertForSequenceClassification.from_pretrained(tmp_path).config.label_names == names


def test_what_predicting_needs_is_kept_beside_the_model(tmp_path: Path) -> None:
    assert load_task(tmp_path) == {"text": "text", "text_pair": None, "max_length": 128}
    save_task(tmp_path, TaskSettings("a", "b", text="first", text_pair="second", max_length=17))
    assert load_task(tmp_path) == {"text": "first", "text_pair": "second", "max_length": 17}
    for damaged in ('{"text": ', "[]", '"x"'):
        (tmp_path / "task.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match=r"task\.json: damaged"):
            load_task(tmp_path)
