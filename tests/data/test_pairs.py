"""Pairs: the rules of the objectives and of packing, each checked on a corpus whose truth is easy to know."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Store, like_prose, unlike

from minibert.data import texts
from minibert.data.blocks import Blocks
from minibert.data.pairs import PairSettings, Rows, label_share, plan_block
from minibert.errors import UserError

OBJECTIVES = ["next_sentence", "sentence_order", "none"]


def plan(store: Store, *, seed: int = 1, epoch: int = 0, **options) -> Rows:
    """The whole epoch of a corpus of one block."""
    return plan_block(Blocks(store, seed), PairSettings(**options), epoch)


def lengths(rows: Rows):
    return rows.a_end - rows.a_begin, rows.b_end - rows.b_begin


@dataclass
class Recorder:
    """An objective that remembers what another one made of the chunks, before anything is cut off."""

    objective: texts.Objective
    made: list[texts.Texts] = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def divide(self, *arguments):
        self.made.append(self.objective.divide(*arguments))
        return self.made[-1]


@contextmanager
def recorded(objective: str) -> Iterator[Recorder]:
    recorder = Recorder(texts.OBJECTIVES[objective])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(texts.OBJECTIVES, objective, recorder)
        yield recorder


MIXED = unlike(*([2 + (3 * d + 5 * s) % 17 for s in range(2 + d % 29)] for d in range(101)))
PROSE = like_prose(sentences=30_011)


@pytest.mark.parametrize("max_length", [5, 17, 128, 509])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("packed", [True, False])
def test_rows_hold_what_they_say_and_never_more_than_fits(objective, max_length, packed):
    rows = plan(MIXED, objective=objective, max_length=max_length, packed=packed)
    held = np.diff(rows.first_pair)
    assert held.min() >= 1
    assert held.max() <= (max(1, max_length // 8) if packed else 1)
    a, b = lengths(rows)
    tokens = a + b + (2 if objective == "none" else 3)
    np.testing.assert_array_equal(np.add.reduceat(tokens, rows.first_pair[:-1]), rows.lengths)
    assert rows.lengths.max() <= max_length
    assert a.min() >= 1
    assert (b.max() == 0) if objective == "none" else (b.min() >= 1)


@pytest.mark.parametrize("max_length", [128, 512])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_packed_rows_are_full(objective, max_length):
    rows = plan(PROSE, objective=objective, max_length=max_length)
    assert rows.lengths.mean() > 0.985 * max_length
    assert np.diff(rows.first_pair).mean() > 1.1


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_sentence_stands_in_exactly_one_chunk_of_an_epoch(objective, packed):
    for epoch in range(3):
        with recorded(objective) as recorder:
            plan(MIXED, objective=objective, packed=packed, max_length=101, epoch=epoch)
        shown = np.zeros(MIXED.sentence_offsets[-1], dtype=int)
        for made in recorder.made:
            random = made.label if objective == "next_sentence" else np.zeros_like(made.label)
            for i in range(len(made.label)):
                shown[made.a_begin[i] : made.a_end[i]] += 1
                shown[made.b_begin[i] : made.b_end[i]] += not random[i]
        np.testing.assert_array_equal(shown, 1)


def test_a_text_is_whole_sentences_or_cut_to_fit():
    with recorded("next_sentence") as recorder:
        plan(MIXED, max_length=101)
    edges = set(MIXED.sentence_offsets)
    for made in recorder.made:
        for edge in (made.a_begin, made.a_end, made.b_begin, made.b_end):
            assert set(edge) <= edges
        np.testing.assert_array_equal(made.a_end[~made.label], made.b_begin[~made.label])


def test_half_of_the_pairs_are_random_and_only_these_are_from_two_documents():
    for epoch in range(3):
        rows = plan(PROSE, epoch=epoch)
        assert abs(rows.label.mean() - 0.5) < 0.003
        same = PROSE.documents_of(rows.a_begin) == PROSE.documents_of(rows.b_begin)
        np.testing.assert_array_equal(same, rows.label == 0)


def test_what_is_forced_to_be_random_is_made_up_for_and_no_label_tells_the_next():
    store = unlike(*[[40]] * 23, *[[12] * 128] * 5)  # one lane; the single sentences are always random
    rows = [plan(store, epoch=epoch) for epoch in range(29)]
    assert abs(np.mean([r.label.mean() for r in rows]) - 0.5) < 0.05  # 0.59 if not
    store = unlike(*[[3] * 61] * 41)  # one lane, and all are free
    label = np.concatenate([plan(store, epoch=epoch).label for epoch in range(29)])
    assert abs(np.corrcoef(label[1:], label[:-1])[0, 1]) < 0.06


def test_single_sentence_documents_give_random_pairs_only():
    assert plan(unlike(*[[7]] * 31)).label.all()
    assert label_share(unlike(*[[7]] * 31), PairSettings()) == 1


def test_the_label_share_is_that_of_a_plan():
    assert label_share(PROSE, PairSettings(), seed=5) == plan(PROSE, seed=5).label.mean()
    assert label_share(MIXED, PairSettings(objective="none")) == 0


def test_the_first_text_takes_any_number_of_sentences_but_all():
    store = unlike(*[[3, 3, 3, 3]] * 701)
    rows = plan(store, max_length=101, short_sequence_probability=0.0, packed=False)
    opening = np.isin(rows.a_begin, store.sentence_offsets[store.document_offsets])  # the first chunk of a document
    taken = lengths(rows)[0][opening]
    assert opening.sum() == 701
    for sentences in (1, 2, 3):
        assert abs((taken == 3 * sentences).mean() - 1 / 3) < 0.08


def test_swapped_texts_are_consecutive_and_half_of_all():
    with recorded("sentence_order") as recorder:
        plan(PROSE, objective="sentence_order")
    for made in recorder.made:
        swapped = made.label
        np.testing.assert_array_equal(
            np.where(swapped, made.b_end, made.a_end), np.where(swapped, made.a_begin, made.b_begin)
        )
    assert abs(np.concatenate([made.label for made in recorder.made]).mean() - 0.5) < 0.01


def test_a_sentence_that_is_alone_is_cut_anywhere_inside_and_a_token_left_out():
    store = unlike(*[[5]] * 1009, *[[1]] * 11)
    rows = plan(store, objective="sentence_order", max_length=31)
    a, b = lengths(rows)
    assert len(a) == 1009
    first = np.where(rows.label, b, a)  # of the two as they stand in the document
    np.testing.assert_array_equal(a + b, 5)
    assert np.abs(np.bincount(first, minlength=5)[1:] / 1009 - 1 / 4).max() < 0.06


def test_one_document_is_enough_where_nothing_is_drawn_from_another():
    store = unlike([7] * 31)
    assert not plan(store, objective="none").label.any()
    assert 0 < plan(store, objective="sentence_order", max_length=32).label.mean() < 1


@pytest.mark.parametrize("documents", [[], [[[5, 6], [7], [8, 9]]]])
def test_fewer_than_two_documents_are_refused(documents):
    with pytest.raises(UserError, match=rf"has {len(documents)} document.* 2 at least"):
        plan(Store(documents))


@pytest.mark.parametrize(("objective", "least"), [("next_sentence", 5), ("sentence_order", 5), ("none", 3)])
def test_a_limit_without_room_for_the_texts_is_refused(objective, least):
    assert len(plan(MIXED, objective=objective, max_length=least)) > 100
    with pytest.raises(UserError, match=f"max_length is {least - 1}; .* need {least} at least"):
        PairSettings(objective=objective, max_length=least - 1)


def test_about_a_tenth_of_the_instances_is_short():
    long = unlike(*[[12] * 128] * 37)
    cut = [(plan(long, packed=False, short_sequence_probability=p).lengths < 113).mean() for p in (0.0, 0.1)]
    assert cut[0] < 0.07  # only at the ends of documents
    assert 0.06 < cut[1] - cut[0] < 0.11
    assert plan(long, packed=False, short_sequence_probability=1.0).lengths.min() == 16
    assert plan(long, packed=False).lengths.mean() > 0.9 * 128


@given(a=st.integers(1, 90), b=st.integers(1, 90), max_length=st.integers(5, 97))
@settings(max_examples=150, deadline=None)
def test_cutting_equals_taking_tokens_from_the_longer_side_one_by_one(a, b, max_length):
    rows = plan(unlike([a], [b]), max_length=max_length, packed=False, short_sequence_probability=0.0)
    first = int(np.argmin(rows.a_begin))  # the instance whose first text is of document 0
    while a + b > max_length - 3:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (lengths(rows)[0][first], lengths(rows)[1][first]) == (a, b)


def test_tokens_are_cut_off_at_both_ends_alike():
    rows = [plan(unlike([503], [1]), epoch=epoch, short_sequence_probability=0.0) for epoch in range(200)]
    fronts = np.array([r.a_begin.min() for r in rows])
    assert abs(fronts.mean() - (503 - 124) / 2) < 3  # 379 coins: a deviation of 9.7 each, of 0.7 for the mean of 200
    assert len(set(fronts)) > 20


def test_random_texts_that_are_the_same_without_a_choice_are_counted():
    rows = plan(Store([[[6, 7, 8]]] * 5))
    assert len(rows.label) == rows.same_text == 5


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equal_seeds_and_epochs_give_equal_plans_and_others_do_not(objective):
    def key(seed: int, epoch: int) -> bytes:
        return b"".join(
            np.asarray(x).tobytes() for x in vars(plan(MIXED, seed=seed, epoch=epoch, objective=objective)).values()
        )

    assert key(3, 2) == key(3, 2)
    assert len({key(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9


def test_rows_do_not_follow_the_order_of_the_documents_and_the_pairs_of_a_row_are_of_several():
    rows = plan(PROSE, max_length=512)
    assert abs(np.corrcoef(np.arange(len(rows)), rows.a_begin[rows.first_pair[:-1]])[0, 1]) < 0.1
    several = np.flatnonzero(np.diff(rows.first_pair) > 1)
    first, second = (PROSE.documents_of(rows.a_begin[rows.first_pair[several] + i]) for i in (0, 1))
    assert (first != second).mean() > 0.9
