"""Pairs: the rules of BERT's instances, each checked on a corpus small or regular enough to know the truth."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.data.pairs import Pairs, PairSettings, plan_pairs
from minibert.errors import UserError


@dataclass(frozen=True)
class Store:
    """A corpus in memory: `documents` are lists of sentences, a sentence is a list of ids."""

    documents: list[list[list[int]]]

    @cached_property
    def document_offsets(self):
        return np.cumsum([0, *(len(d) for d in self.documents)])

    @cached_property
    def sentence_offsets(self):
        return np.cumsum([0, *(len(s) for d in self.documents for s in d)])

    @cached_property
    def stream(self):
        return np.array([i for d in self.documents for s in d for i in s], dtype=np.uint16)

    def tokens(self, begin, end):
        return self.stream[begin:end]

    def documents_of(self, positions):
        return np.searchsorted(self.sentence_offsets[self.document_offsets], positions, side="right") - 1


def unlike(*lengths_of_documents: list[int]) -> Store:
    """Documents with sentences of the given lengths, no two tokens alike."""
    ids = iter(range(5, 65_000))
    return Store([[[next(ids) for _ in range(n)] for n in lengths] for lengths in lengths_of_documents])


def plan(store: Store, *, seed: int = 1, epoch: int = 0, **options: float) -> Pairs:
    return plan_pairs(store, PairSettings(**options), seed=seed, epoch=epoch)


def lengths(pairs: Pairs):
    return pairs.a_end - pairs.a_begin, pairs.b_end - pairs.b_begin


LONG = Store([[[5 + (d * 7 + s) % 90] * 12 for s in range(1511)] for d in range(23)])
MIXED = unlike(*([2 + (3 * d + 5 * s) % 17 for s in range(2 + d % 29)] for d in range(101)))


def test_half_of_the_pairs_are_random_and_never_from_the_same_document():
    plans = [plan(LONG, epoch=epoch) for epoch in range(13)]
    randoms = np.concatenate([p.is_random for p in plans])
    assert abs(randoms.mean() - 0.5) < 0.01
    for pairs in plans:
        same = LONG.documents_of(pairs.a_begin) == LONG.documents_of(pairs.b_begin)
        np.testing.assert_array_equal(same, ~pairs.is_random)


def test_a_true_second_text_begins_where_the_sentences_of_the_first_end():
    pairs = plan(MIXED, max_length=61, short_sequence_probability=0.5)
    a, b = lengths(pairs)
    whole = (a + b < 58) & ~pairs.is_random  # shorter than the budget: nothing was cut off
    assert whole.sum() > 50
    np.testing.assert_array_equal(pairs.a_end[whole], pairs.b_begin[whole])
    assert set(pairs.b_begin[whole]) <= set(MIXED.sentence_offsets)
    cut = (a + b == 58) & ~pairs.is_random
    assert (pairs.b_begin >= pairs.a_end)[cut].all()


def test_texts_are_whole_sentences_where_nothing_is_cut():
    pairs = plan(MIXED, max_length=1009)
    for edges in (pairs.a_begin, pairs.a_end, pairs.b_begin, pairs.b_end):
        assert set(edges) <= set(MIXED.sentence_offsets)
    np.testing.assert_array_equal(MIXED.documents_of(pairs.a_begin), MIXED.documents_of(pairs.a_end - 1))
    np.testing.assert_array_equal(MIXED.documents_of(pairs.b_begin), MIXED.documents_of(pairs.b_end - 1))


@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_every_sentence_is_shown_once_as_first_or_true_second_text(short):
    pairs = plan(MIXED, max_length=1009, short_sequence_probability=short)
    shown = np.zeros(MIXED.sentence_offsets[-1], dtype=int)
    for i in range(len(pairs)):
        shown[pairs.a_begin[i] : pairs.a_end[i]] += 1
        if not pairs.is_random[i]:
            shown[pairs.b_begin[i] : pairs.b_end[i]] += 1
    np.testing.assert_array_equal(shown, 1)


def test_the_first_text_takes_any_number_of_sentences_but_all():
    store = unlike(*[[3, 3, 3, 3]] * 701)
    pairs = plan(store, max_length=101, short_sequence_probability=0.0)
    opening = np.isin(pairs.a_begin, store.sentence_offsets[store.document_offsets])  # the first chunk of a document
    taken = lengths(pairs)[0][opening]
    assert opening.sum() == 701
    for sentences in (1, 2, 3):
        assert abs((taken == 3 * sentences).mean() - 1 / 3) < 0.08


def test_a_random_text_starts_anywhere_in_any_other_document():
    store = unlike(*[[2, 2, 2]] * 5)
    begins = np.concatenate([p.b_begin[p.is_random] for p in (plan(store, epoch=e) for e in range(300))])
    counts = np.bincount(begins // 2, minlength=15)
    assert counts.min() > 0.7 * counts.mean()
    assert counts.max() < 1.3 * counts.mean()


def test_single_sentence_documents_give_random_pairs_only():
    assert plan(unlike(*[[7]] * 31)).is_random.all()


def test_instances_are_nearly_full():
    a, b = lengths(plan(LONG))
    assert ((a + b + 3) / 128).mean() > 0.85


def test_about_a_tenth_of_the_chunks_is_short():
    a, b = lengths(plan(LONG, max_length=128))
    whole = plan(LONG, max_length=128, short_sequence_probability=0.0)
    assert (sum(lengths(whole)) < 113).mean() < 0.01  # only at the ends of documents
    assert 0.07 < (a + b < 113).mean() < 0.11


def test_long_sentences_are_cut_to_the_limit_and_both_sides_stay():
    pairs = plan(unlike(*[[600]] * 11, *[[1]] * 13))
    a, b = lengths(pairs)
    assert (a + b).max() == 125
    assert min(a.min(), b.min()) == 1
    both_long = (a > 1) & (b > 1)
    assert set(a[both_long]) == {63}
    assert set(b[both_long]) == {62}
    assert set(a[(a > 1) & (b == 1)]) == {124}  # only the longer side loses tokens


@given(a=st.integers(1, 90), b=st.integers(1, 90), max_length=st.integers(5, 97))
@settings(max_examples=150, deadline=None)
def test_cutting_equals_taking_tokens_from_the_longer_side_one_by_one(a, b, max_length):
    pairs = plan(unlike([a], [b]), max_length=max_length)
    first = int(np.argmin(pairs.a_begin))  # the instance whose first text is of document 0
    while a + b > max_length - 3:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (lengths(pairs)[0][first], lengths(pairs)[1][first]) == (a, b)


def test_tokens_are_cut_off_at_both_ends_alike():
    pairs = [plan(unlike([503], [1]), epoch=epoch) for epoch in range(200)]
    fronts = np.array([p.a_begin.min() for p in pairs])
    assert abs(fronts.mean() - (503 - 124) / 2) < 3  # 379 coins: a deviation of 9.7 each, of 0.7 for the mean of 200
    assert len(set(fronts)) > 20


def test_a_random_text_does_not_repeat_the_first_or_the_following_sentence():
    store = Store([[[10 + d] * 4, [9] * 4] for d in range(3)])  # the footer follows A, or A is the footer
    for epoch in range(60):
        pairs = plan(store, epoch=epoch)
        assert pairs.same_text == 0
        np.testing.assert_array_equal(pairs.b_begin[pairs.is_random] % 8, 0)  # so B never begins with the footer


def test_random_texts_that_are_the_same_without_a_choice_are_counted():
    pairs = plan(Store([[[6, 7, 8]]] * 5))
    assert len(pairs) == pairs.same_text == 5


@pytest.mark.parametrize("documents", [[], [[[5, 6], [7], [8, 9]]]])
def test_fewer_than_two_documents_are_refused(documents):
    with pytest.raises(UserError, match=rf"has {len(documents)} document.* 2 at least"):
        plan(Store(documents))


def test_a_limit_without_room_for_two_texts_is_refused():
    with pytest.raises(UserError, match="max_length is 4"):
        PairSettings(max_length=4)


def test_equal_seeds_and_epochs_give_equal_plans_and_others_do_not():
    def key(pairs: Pairs) -> bytes:
        return b"".join(x.tobytes() for x in (pairs.a_begin, pairs.a_end, pairs.b_begin, pairs.b_end, pairs.is_random))

    assert key(plan(MIXED, seed=3, epoch=2)) == key(plan(MIXED, seed=3, epoch=2))
    assert len({key(plan(MIXED, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_an_epoch_does_not_follow_the_order_of_the_documents():
    pairs = plan(LONG)
    assert abs(np.corrcoef(np.arange(len(pairs)), pairs.a_begin)[0, 1]) < 0.1
