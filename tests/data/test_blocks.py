"""Blocks: each sentence is in one block of an epoch, in spans that are whole documents or 128 sentences of one."""

import itertools
import pickle

import numpy as np
import pytest
from stores import unlike

from minibert.data import blocks
from minibert.data.blocks import SPAN, Block, Blocks

STORE = unlike(*([1 + (d + s) % 3 for s in range((1, 2, 127, 128, 129, 5, 301)[d % 7])] for d in range(211)))


def spans_of(block: Block) -> list[tuple[int, list[int]]]:
    """The document of each span and its sentences."""
    begins = np.concatenate(([0], np.unique(block.last)))
    return [(int(block.document[a]), block.sentence[a:b].tolist()) for a, b in itertools.pairwise(begins)]


def slowly() -> list[tuple[int, list[int]]]:
    """All spans of the documents, cut by hand."""
    spans = []
    for d, (begin, end) in enumerate(zip(STORE.document_offsets[:-1], STORE.document_offsets[1:], strict=True)):
        spans += [(d, list(range(s, min(s + SPAN, end)))) for s in range(begin, end, SPAN)]
    return spans


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1009)
    monkeypatch.setattr(blocks, "_CHUNK", 2)  # documents are counted in two portions of 128


def test_the_blocks_of_an_epoch_hold_each_span_once_in_a_new_order_for_each_epoch_and_seed(small_blocks):
    orders = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        made = Blocks(STORE, seed)
        assert made.count == round(len(STORE.sentence_offsets) / 1009) > 10
        spans = [span for b in range(made.count) for span in spans_of(made.block(epoch * made.count + b))]
        assert sorted(spans) == slowly()
        orders.append(spans)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert abs(np.corrcoef(np.arange(len(orders[0])), [d for d, _ in orders[0]])[0, 1]) < 0.2


def test_a_block_knows_where_its_sentences_are(small_blocks):
    block = Blocks(STORE, 3).block(17)
    lengths = np.diff(STORE.sentence_offsets)[block.sentence]
    np.testing.assert_array_equal(block.begin, STORE.sentence_offsets[block.sentence])
    np.testing.assert_array_equal(np.diff(block.passed), lengths)
    assert block.passed[0] == 0
    np.testing.assert_array_equal(block.document, STORE.documents_of(block.begin))


def test_blocks_are_about_equally_large(small_blocks):
    made = Blocks(STORE, 1)
    sizes = [len(made.block(b)) for b in range(made.count)]
    assert 0.6 * 1009 < min(sizes) <= max(sizes) < 1.4 * 1009


def test_a_corpus_without_documents_has_one_empty_block():
    made = Blocks(unlike(), 1)
    assert made.count == 1
    assert len(made.block(0)) == 0


def test_blocks_travel_to_another_process_with_their_corpus_alone():
    assert len(pickle.dumps(Blocks(STORE, 1))) < len(pickle.dumps(STORE)) + 1000
