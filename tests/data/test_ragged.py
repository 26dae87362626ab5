"""Inputs side by side: nothing of them is lost, rows are full, and the model says what it says of each alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from minibert import AttentionConfig, BertConfig, BertForSequenceClassification
from minibert.adapters import attach
from minibert.adapters.kinds import KINDS
from minibert.data.ragged import Inputs, Packed, by_length, lay_out, pack

LENGTHS = [23, 5, 2, 11, 17, 3, 13, 7, 3, 19, 2]
ATTENTION = {
    "published": AttentionConfig(),
    "window": AttentionConfig(window=3, global_tokens=1),
    "cosine": AttentionConfig(score="cosine"),
    "hard": AttentionConfig(weights="hard"),
}


def inputs_of(lengths: Sequence[int], *, pairs: bool = True, seed: int = 0) -> Inputs:
    """Random tokens; the second half of every other input is its second text."""
    rng = np.random.default_rng(seed)
    types = [
        np.arange(length) >= (length // 2 if pairs and number % 2 else length) for number, length in enumerate(lengths)
    ]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return Inputs(rng.integers(5, 41, offsets[-1]), np.concatenate([[], *types]).astype(np.int8), offsets)


def tokens_of(inputs: Inputs, number: int) -> tuple[list[int], list[int]]:
    part = slice(inputs.offsets[number], inputs.offsets[number + 1])
    return inputs.input_ids[part].tolist(), inputs.token_type_ids[part].tolist()


def alone(inputs: Inputs, number: int) -> dict[str, Tensor]:
    """One input as a batch."""
    ids, types = tokens_of(inputs, number)
    return {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}


def padded(inputs: Inputs, chosen: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> dict[str, Tensor]:
    """A row for each input, as wide as the longest."""
    rows = [alone(inputs, number) for number in chosen.tolist()]
    batch = {
        name: nn.utils.rnn.pad_sequence([row[name][0] for row in rows], batch_first=True)
        for name in ("input_ids", "token_type_ids")
    }
    mask = nn.utils.rnn.pad_sequence([torch.ones(row["input_ids"].size(1)) for row in rows], batch_first=True)
    return {**batch, "attention_mask": mask, "labels": torch.from_numpy(labels[chosen])}


def classifier(kind: str | None = None, attention: str = "published") -> BertForSequenceClassification:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=41,
        hidden_size=34,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=29,
        max_position_embeddings=23,
        num_labels=5,
        initializer_range=0.3,
        attention=ATTENTION[attention],
    )
    model = BertForSequenceClassification(config)
    if kind is not None:
        attach(model, KINDS[kind]())
    for name, weight in model.named_parameters():
        if name.startswith("adapters."):
            nn.init.normal_(weight, std=0.3)  # one that says nothing would hide a mistake
    return model.eval()


def test_inputs_stand_side_by_side_with_positions_of_their_own() -> None:
    inputs = Inputs(
        np.array([2, 7, 7, 3, 8, 8, 3, 2, 9, 3, 2, 6, 6, 6, 3]),
        np.array([0, 0, 0, 0, 1, 1, 1, *[0] * 8]),
        np.array([0, 7, 10, 15]),
    )
    batch, places = pack(inputs, np.arange(3), pad_id=11, labels=np.array([4, 5, 6]))
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[2, 7, 7, 3, 8, 8, 3, 11], [2, 9, 3, 2, 6, 6, 6, 3]],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 1, 0], [1] * 8],
        "token_type_ids": [[0, 0, 0, 0, 1, 1, 1, 0], [0] * 8],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6, 0], [0, 1, 2, 0, 1, 2, 3, 4]],
        "sequence_ids": [[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 2, 2, 2, 2, 2]],
        "cls_positions": [[0, 0], [0, 3]],
        "labels": [[4, -100], [5, 6]],
    }
    assert places.tolist() == [0, 2, 3]
    assert Packed(batch, places).in_order(batch["labels"]).tolist() == [4, 5, 6]


@given(st.lists(st.integers(2, 97), min_size=1, max_size=53), st.data())
def test_every_input_is_found_again_whatever_the_lengths(lengths: list[int], data: st.DataObject) -> None:
    inputs = inputs_of(lengths, seed=len(lengths))
    chosen = np.array(data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True)))
    batch, places = pack(inputs, chosen, pad_id=0, labels=np.arange(len(lengths)))
    columns = batch["cls_positions"].size(1)
    for number, place in zip(chosen.tolist(), places.tolist(), strict=True):
        row, slot = divmod(place, columns)
        held = batch["sequence_ids"][row] == slot + 1
        found = batch["input_ids"][row][held].tolist(), batch["token_type_ids"][row][held].tolist()
        assert found == tokens_of(inputs, number)
        assert batch["position_ids"][row][held].tolist() == list(range(lengths[number]))
        assert held.nonzero()[0] == batch["cls_positions"][row, slot]
        assert batch["labels"][row, slot] == number
    assert int(batch["attention_mask"].sum()) == sum(lengths[number] for number in chosen)
    assert int((batch["labels"] != -100).sum()) == len(chosen)
    assert batch["input_ids"].size(1) % 8 == 0
    assert batch["attention_mask"].any(1).all()  # no row is empty


@pytest.mark.parametrize(("mean", "spread", "most"), [(27, 0.4, 61), (230, 0.6, 512)])
def test_rows_are_nearly_full_and_cheaper_than_padded_ones(mean: int, spread: float, most: int) -> None:
    rng = np.random.default_rng(5)
    lengths = np.minimum(mean * rng.lognormal(0, spread, (43, 32)), most).astype(np.int64) + 2
    layouts = [lay_out(batch) for batch in lengths]
    cost, full = (
        sum(one.rows * one.width * (512 + one.width) for one in layouts),
        sum(one.rows * one.width for one in layouts),
    )
    widest = lengths.max(1)
    assert lengths.sum() / full > 0.92
    assert cost < (32 * widest * (512 + widest)).sum() * 0.67


def test_an_input_longer_than_all_others_gets_a_row_that_others_share() -> None:
    layout = lay_out(np.array([997, *[13] * 76]))  # 76 * 13 = 988
    assert (layout.rows, layout.width) == (2, 1000)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("pairs", [False, True])
def test_the_answer_to_each_input_is_that_to_it_alone(attention: str, pairs: bool) -> None:
    model, inputs = classifier(attention=attention), inputs_of(LENGTHS, pairs=pairs)
    chosen = np.random.default_rng(1).permutation(len(inputs))[:-1]
    packed = pack(inputs, chosen, pad_id=0)
    with torch.no_grad():
        logits = packed.in_order(model(**packed.batch).logits)
        slow = torch.cat([model(**alone(inputs, number)).logits for number in chosen.tolist()])
    assert packed.batch["input_ids"].size(0) < len(chosen)
    torch.testing.assert_close(logits, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_loss_and_gradients_are_those_of_padded_rows(kind: str | None) -> None:
    labels = np.arange(len(LENGTHS)) % 5
    inputs, chosen = inputs_of(LENGTHS), np.array([9, 1, 4, 0, 8, 2, 3])
    found = []
    for batch in (pack(inputs, chosen, pad_id=0, labels=labels).batch, padded(inputs, chosen, labels)):
        model = classifier(kind)
        output = model(**batch)
        output.losses["label"].total.backward()
        assert output.losses["label"].count == 7
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        found.append({"loss": output.loss.detach(), **gradients})
    assert len(found[0]) > 2
    assert found[0].keys() == found[1].keys()
    for name, ours in found[0].items():
        torch.testing.assert_close(ours, found[1][name], atol=1e-5, rtol=1e-5, msg=name)


def test_a_process_without_a_share_gets_a_batch_of_no_rows_that_can_be_trained_on() -> None:
    batch, places = pack(inputs_of(LENGTHS), np.array([], np.int64), pad_id=0, labels=np.zeros(11, np.int64))
    assert len(places) == batch["input_ids"].size(0) == batch["labels"].size(0) == 0
    model = classifier().train()
    total = model(**batch).losses["label"].total
    total.backward()
    assert float(total.detach()) == 0.0
    assert all(not weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_by_length_has_every_input_once() -> None:
    lengths = np.random.default_rng(2).integers(2, 97, 97).tolist()
    batches = list(by_length(inputs_of(lengths), 8))
    assert sorted(np.concatenate(batches).tolist()) == list(range(97))
    assert [len(batch) for batch in batches] == [8] * 12 + [1]
    assert [lengths[row] for batch in batches for row in batch] == sorted(lengths)
