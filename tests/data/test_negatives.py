"""Random second texts: where they may come from, how far they go, and what they must not repeat."""

import numpy as np
from stores import Store, unlike

from minibert.data.negatives import draw_texts
from minibert.data.random import generator

STORE = unlike(*([1 + (5 * s + d) % 19 for s in range(1 + (7 * d) % 61)] for d in range(47)))
SENTENCES, DOCUMENTS = STORE.sentence_offsets, STORE.document_offsets


def draw(store: Store, document: np.ndarray, wanted: np.ndarray, *, seed: int = 1):
    """For first texts that are the first sentence of each document."""
    first = store.document_offsets[document]
    return draw_texts(store, document, (first, first + 1), wanted, generator(seed))


def test_a_text_ends_with_the_sentence_that_has_enough_or_with_its_document():
    wanted = generator(3).integers(1, 500, 2003)
    document = generator(4).integers(47, size=2003)
    begin, end, _ = draw(STORE, document, wanted)
    whole = 0
    for b, e, tokens, own in zip(begin, end, wanted, document, strict=True):
        other = STORE.documents_of(b)
        assert other != own
        edges = SENTENCES[DOCUMENTS[other] : DOCUMENTS[other + 1] + 1]
        assert b in edges
        enough = [edge for edge in edges if edge >= b + tokens]
        assert e == (enough[0] if enough else edges[-1])
        whole += not enough
    assert 100 < whole < 1900


def test_any_sentence_of_any_other_document_is_equally_likely():
    store = unlike(*[[2, 2, 2]] * 5)
    begin, _, _ = draw(store, np.repeat(np.arange(5), 4000), np.full(20_000, 3))
    counts = np.bincount(begin // 2, minlength=15)
    assert counts.min() > 0.9 * counts.mean()
    assert counts.max() < 1.1 * counts.mean()


def test_a_text_does_not_begin_like_the_first_or_the_following_sentence():
    footer = [9, 9, 9, 9]
    store = Store([[[10 + d] * 4, footer, [30 + d] * 3] for d in range(3)])
    begin, _, same = draw(store, np.arange(3).repeat(200), np.full(600, 2))  # the footer follows each first text
    assert not same.any()
    assert 0 not in [int((store.stream[begin] == value).sum()) for value in (10, 11, 12, 30, 31, 32)]
    assert (store.stream[begin] != 9).all()


def test_what_stands_behind_a_document_does_not_follow_it():
    store = Store([[[7, 7]], [[8, 8]], [[9, 9]]])  # the sentence after the first document's is the second document's
    begin, _, same = draw(store, np.zeros(100, int), np.full(100, 2))
    assert set(store.stream[begin]) == {8, 9}
    assert not same.any()


def test_texts_that_are_the_same_without_a_choice_are_told():
    store = Store([[[6, 7, 8]]] * 5)
    assert draw(store, np.arange(5), np.full(5, 9))[2].all()
