"""Do both sides of a benchmark get the same sequences, and do they learn the same from them?"""

import numpy as np
import pytest
import torch
import transformers
from parts.encoders import Setting, minibert
from parts.inputs import draw, filling, first_of, lengths_like, packed, padded
from parts.shapes import Shape

from minibert.data.masking import IGNORED

SETTING = Setting(Shape(2, 64, vocabulary=307), 37, dropout=0.0)
LENGTHS = {
    "one length": np.full(5, 37),
    "many lengths": np.array([5, 31, 7, 19, 37, 11, 6]),
    "rows that are filled": filling(width=37, tokens=200, seed=0),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_losses_and_gradients_of_both_sides_are_the_same(lengths, tmp_path):
    torch.manual_seed(0)
    ours = minibert(SETTING)
    ours.save_pretrained(tmp_path)
    other = transformers.BertForPreTraining.from_pretrained(tmp_path)
    sequences = draw(lengths, seed=1, vocabulary=307)
    first, second = (
        model.train()(**batch).loss for model, batch in ((ours, packed(sequences, 37)), (other, padded(sequences)))
    )
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    first.backward()
    second.backward()
    torch.testing.assert_close(
        ours.bert.embeddings.positions.weight.grad,
        other.bert.embeddings.position_embeddings.weight.grad,
        rtol=1e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_both_layouts_hold_the_same_tokens_and_labels(lengths):
    sequences = draw(lengths, seed=1, vocabulary=307)
    for batch in (packed(sequences, 37), padded(sequences)):
        real = batch["attention_mask"].bool()
        pieces = sorted(zip(batch["input_ids"][real].tolist(), batch["labels"][real].tolist(), strict=True))
        assert pieces == sorted(zip(sequences.inputs.input_ids.tolist(), sequences.labels.tolist(), strict=True))
        assert (batch["labels"][~real] == IGNORED).all()


def test_what_is_read_is_counted_for_each_sequence():
    sequences = draw(LENGTHS["many lengths"], seed=1, vocabulary=307)
    rows = padded(sequences)
    assert [one.length for one in sequences.readings] == rows["attention_mask"].sum(1).tolist()
    assert [one.masked for one in sequences.readings] == (rows["labels"] != IGNORED).sum(1).tolist()


def test_lengths_are_cut_and_reach_the_tokens_that_are_wanted():
    assert first_of(np.array([3, 90, 41]), longest=67, tokens=120).tolist() == [5, 67, 41, 5, 67]
    drawn = lengths_like("rotten-tomatoes", longest=512, tokens=50_000, seed=0)
    assert 50_000 <= drawn.sum() < 50_512
    assert 23 <= np.median(drawn) <= 27


def test_rows_are_filled_to_their_ends():
    lengths = filling(width=37, tokens=4_000, seed=3)
    assert set(range(37, 3_997, 37)) <= set(lengths.cumsum().tolist())
    assert lengths.min() >= 5
    assert lengths.sum() == 4_000 // 37 * 37
