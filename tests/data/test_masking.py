"""Masking: counts, shares and what may never happen, over enough draws to tell."""

import numpy as np
import pytest

from minibert.data.masking import MaskingSettings, mask_tokens
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)


def vocabulary(size: int, continuation=()) -> Vocabulary:
    ids = np.arange(size)
    return Vocabulary(
        size=size,
        pad=PAD,
        unk=UNK,
        cls=CLS,
        sep=SEP,
        mask=MASK,
        special=ids < 5,
        continuation=np.isin(ids, continuation),
    )


PLAIN = vocabulary(97)


def mask(rows, *, words=PLAIN, seed=0, **options):
    """Mask rows of ids; returns the ids, the masked ids and where tokens are to be guessed."""
    ids = np.full((len(rows), max(map(len, rows))), PAD)
    for row, content in zip(ids, rows, strict=True):
        row[: len(content)] = content
    masked, labels = mask_tokens(
        ids, np.random.default_rng(seed).random((3, *ids.shape)), words, MaskingSettings(**options)
    )
    chosen = labels != -100
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(masked[~chosen], ids[~chosen])
    return ids, masked, chosen


def row(length: int, word: int = 7) -> list[int]:
    return [CLS, *[word] * (length - 3), SEP, SEP]


def test_four_fifths_are_masked_one_tenth_replaced_one_tenth_kept():
    size = 1009
    ids, masked, chosen = mask([row(503, word=800)] * 2657, words=vocabulary(size))
    assert chosen.sum() > 190_000
    hidden = (masked == MASK)[chosen].mean()
    same = (masked == ids)[chosen].mean()
    by_chance = 0.1 / (size - 5)  # a random token that happens to be the original
    assert abs(hidden - 0.8) < 0.004
    assert abs(same - 0.1 - by_chance) < 0.003
    assert abs(1 - hidden - same - 0.1 + by_chance) < 0.003


def test_shares_are_those_of_the_settings():
    ids, masked, chosen = mask([row(103)] * 501, mask_share=0.0, random_share=0.0)
    np.testing.assert_array_equal(masked, ids)
    assert chosen.any()
    ids, masked, chosen = mask([row(103)] * 501, mask_share=0.3, random_share=0.7)
    assert abs((masked == MASK)[chosen].mean() - 0.3) < 0.03
    with pytest.raises(UserError, match=r"mask_share 0.8 and random_share 0.3"):
        MaskingSettings(mask_share=0.8, random_share=0.3)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_special_tokens_and_padding_are_never_chosen(unit):
    ids, _, chosen = mask([row(5), row(50), [CLS, UNK, MASK, 9, SEP]], probability=1.0, unit=unit)
    np.testing.assert_array_equal(chosen, ids >= 5)


def test_random_replacements_are_ordinary_tokens_all_alike():
    _, masked, chosen = mask([row(103)] * 1000, words=vocabulary(15), probability=1.0, mask_share=0, random_share=1)
    counts = np.bincount(masked[chosen], minlength=15)
    np.testing.assert_array_equal(counts[:5], 0)
    np.testing.assert_allclose(counts[5:] / 100_000, 0.1, atol=0.005)


def test_the_number_of_targets_follows_the_original_rule():
    lengths = [3, 10, 128, 512]
    rows = [[CLS, 9, SEP], *(row(n) for n in lengths[1:])]
    assert mask(rows)[2].sum(axis=1).tolist() == [1, 2, 19, 77]
    assert mask(rows, max_predictions=20)[2].sum(axis=1).tolist() == [1, 2, 19, 20]
    assert mask(rows, probability=0.0)[2].sum(axis=1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_row_of_special_tokens_has_nothing_to_guess(unit):
    _, _, chosen = mask([[CLS, SEP, SEP], [CLS, UNK, SEP, UNK, SEP], row(11)], unit=unit)
    assert chosen.sum(axis=1).tolist() == [0, 0, 2]


def test_every_ordinary_token_is_chosen_equally_often():
    _, _, chosen = mask([row(23)] * 9000)
    rate = chosen[:, 1:21].mean(axis=0)
    np.testing.assert_allclose(rate, 3 / 20, atol=0.015)


def test_the_pieces_of_a_word_are_chosen_together():
    un, want, ed, comma, runn, ing = range(5, 11)
    words = vocabulary(11, continuation=[want, ed, ing])
    text = [CLS, un, want, ed, comma, runn, ing, SEP]
    _, _, chosen = mask([text] * 10_000, words=words, unit="word", probability=0.4)  # round(8 * 0.4) = 3 to guess
    kinds = {tuple(np.flatnonzero(c)) for c in chosen}
    assert kinds == {(1, 2, 3), (4, 5, 6)}
    _, _, chosen = mask([text] * 10_000, words=words, unit="word")  # one to guess: only the comma fits
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(4,)}


def test_whole_words_fill_the_quota_as_the_original_loop_does():
    rng = np.random.default_rng(5)
    words = vocabulary(97, continuation=range(60, 97))
    ids = np.array([[CLS, *rng.integers(5, 97, 41), SEP, *rng.integers(5, 97, 17), SEP] for _ in range(199)])
    draws = rng.random((3, *ids.shape))
    _, labels = mask_tokens(ids, draws, words, MaskingSettings(unit="word"))
    for text, draw, got in zip(ids, draws[0], labels, strict=True):
        np.testing.assert_array_equal(np.flatnonzero(got != -100), whole_words_one_by_one(text, draw, quota=9))


def whole_words_one_by_one(text, draw, quota):
    found: list[list[int]] = []
    for i, token in enumerate(text):
        if token >= 60 and text[i - 1] >= 5:
            found[-1].append(i)
        elif token >= 5:
            found.append([i])
    chosen: list[int] = []
    for word in sorted(found, key=lambda word: draw[word[0]]):
        if len(chosen) + len(word) <= quota:
            chosen += word
    return sorted(chosen)


def test_a_word_longer_than_the_quota_is_taken_where_no_other_fits():
    words = vocabulary(11, continuation=[6, 7])
    _, _, chosen = mask([[CLS, 5, 6, 7, 6, SEP, SEP]], words=words, unit="word")
    assert np.flatnonzero(chosen[0]).tolist() == [1, 2, 3, 4]


def test_pieces_at_the_cut_edge_of_a_text_are_a_word_of_their_own():
    words = vocabulary(11, continuation=[6, 7])
    _, _, chosen = mask([[CLS, 6, 7, SEP, 7, 6, 6, SEP]] * 500, words=words, unit="word", probability=0.3)  # 2 to guess
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(1, 2)}


@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_row_is_masked_alike_alone_and_among_longer_ones(unit):
    rng = np.random.default_rng(3)
    words = vocabulary(97, continuation=range(60, 97))
    ids = np.array([[CLS, *rng.integers(5, 97, 27), SEP, SEP, *[PAD] * 9], [CLS, *rng.integers(5, 97, 36), SEP, SEP]])
    draws = rng.random((3, *ids.shape))
    settings = MaskingSettings(unit=unit)
    together = mask_tokens(ids, draws, words, settings)
    alone = mask_tokens(ids[:1, :30], draws[:, :1, :30], words, settings)
    for whole, part in zip(together, alone, strict=True):
        np.testing.assert_array_equal(whole[:1, :30], part)
