"""Masking: counts, shares and what may never happen, over enough draws to tell; and a slow loop that does the same."""

import numpy as np
import pytest
from scipy import stats

from minibert.data.masking import MaskingSettings, mask_tokens, masking_probability
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)
UNITS = ("token", "word", "span")

every_unit = pytest.mark.parametrize("unit", UNITS)


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
PIECES = vocabulary(97, continuation=range(60, 97))


def pack(rows):
    """Rows of sequences of ids -> ids and numbers of sequences, padded at the right."""
    ids = np.full((len(rows), max(sum(map(len, row)) for row in rows)), PAD)
    sequence_ids = np.zeros_like(ids)
    for i, row in enumerate(rows):
        flat = np.concatenate(row)
        ids[i, : len(flat)] = flat
        sequence_ids[i, : len(flat)] = np.repeat(np.arange(1, len(row) + 1), [len(sequence) for sequence in row])
    return ids, sequence_ids


def mask(rows, *, words=PLAIN, seed=0, draws=None, probability=0.15, **options):
    """Mask rows of one sequence each; returns the ids, the masked ids and where tokens are to be guessed."""
    return mask_packed([[row] for row in rows], words=words, seed=seed, draws=draws, probability=probability, **options)


def mask_packed(rows, *, words=PLAIN, seed=0, draws=None, probability=0.15, **options):
    ids, sequence_ids = pack(rows)
    settings = MaskingSettings(**options)
    draws = np.random.default_rng(seed).random((settings.draws, *ids.shape)) if draws is None else draws
    masked, labels = mask_tokens(ids, sequence_ids, words.continuation[ids], draws, words, settings, probability)
    chosen = labels != -100
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(masked[~chosen], ids[~chosen])
    return ids, masked, chosen


def row(length: int, word: int = 7) -> list[int]:
    return [CLS, *[word] * (length - 3), SEP, SEP]


def text(rng, length: int) -> list[int]:
    """[CLS] A [SEP] B [SEP] of random words and pieces, with an unknown word here and there."""
    ids = rng.integers(5, 97, length)
    ids[rng.random(length) < 0.04] = UNK
    ids[[0, length // 3, -1]] = CLS, SEP, SEP
    return ids.tolist()


def choose_slowly(ids, sequence_ids, draws, settings, probability):
    """Span after span, or word after word, of one row: the columns to guess, each with the column that decides."""
    chosen: dict[int, int] = {}
    for number in range(1, sequence_ids.max() + 1):
        columns = np.flatnonzero(sequence_ids == number)
        words: list[list[int]] = []
        for i in columns:
            inside = ids[i] >= 60 and settings.unit != "token" and i > columns[0] and ids[i - 1] >= 5
            if ids[i] >= 5:
                words[-1].append(i) if inside else words.append([i])
        left = max(1, round(len(columns) * probability))
        mine: dict[int, int] = {}
        for first in sorted(range(len(words)), key=lambda w: draws[0][words[w][0]]):
            for word in one_span(words[first:], draws, settings.unit):
                if len(word) <= left and word[0] not in mine:
                    left -= len(word)
                    mine |= dict.fromkeys(word, words[first][0])
        if words and not mine:
            first_word = min(words, key=lambda word: draws[0][word[0]])
            mine = dict.fromkeys(first_word, first_word[0])
        chosen |= mine
    return chosen


def one_span(words, draws, unit):
    """The words of the span that begins at the first of `words`."""
    if unit != "span":
        return words[:1]
    at_most = (1 - 0.8 ** np.arange(1, 11)) / (1 - 0.8**10)
    length = 1 + sum(draws[3][words[0][0]] >= share for share in at_most[:-1])
    kept = words[:1]
    for word in words[1:length]:
        if word[0] != kept[-1][-1] + 1:
            break
        kept.append(word)
    return kept


@pytest.mark.parametrize(("unit", "rows"), [("token", 2657), ("word", 2657), ("span", 4001)])
def test_four_fifths_are_masked_one_tenth_replaced_one_tenth_kept(unit, rows):
    size = 1009
    ids, masked, chosen = mask([row(503, word=800)] * rows, words=vocabulary(size), unit=unit)
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


@every_unit
def test_special_tokens_and_padding_are_never_chosen(unit):
    ids, _, chosen = mask([row(5), row(50), [CLS, UNK, MASK, 9, SEP]], probability=1.0, unit=unit)
    np.testing.assert_array_equal(chosen, ids >= 5)


def test_random_replacements_are_ordinary_tokens_all_alike():
    _, masked, chosen = mask([row(103)] * 1000, words=vocabulary(15), probability=1.0, mask_share=0, random_share=1)
    counts = np.bincount(masked[chosen], minlength=15)
    np.testing.assert_array_equal(counts[:5], 0)
    np.testing.assert_allclose(counts[5:] / 100_000, 0.1, atol=0.005)


@every_unit
def test_the_number_of_targets_follows_the_original_rule(unit):
    rows = [[CLS, 9, SEP], *(row(n) for n in (10, 128, 512))]
    assert mask(rows, unit=unit)[2].sum(axis=1).tolist() == [1, 2, 19, 77]
    assert mask(rows, unit=unit, max_predictions=20)[2].sum(axis=1).tolist() == [1, 2, 19, 20]
    assert mask(rows, unit=unit, probability=0.0)[2].sum(axis=1).tolist() == [1, 1, 1, 1]


@every_unit
def test_each_sequence_of_a_row_has_a_quota_of_its_own(unit):
    lengths = [10, 512, 3, 128]
    (*_, chosen) = mask_packed([[row(n) for n in lengths], [row(17)]], unit=unit, max_predictions=20)
    assert [part.sum() for part in np.split(chosen[0], np.cumsum(lengths))] == [2, 20, 0, 19, 0]
    assert chosen[1].sum() == 3


@every_unit
def test_a_row_of_special_tokens_has_nothing_to_guess(unit):
    _, _, chosen = mask([[CLS, SEP, SEP], [CLS, UNK, SEP, UNK, SEP], row(11)], unit=unit)
    assert chosen.sum(axis=1).tolist() == [0, 0, 2]
    assert not mask([[CLS, SEP, SEP]], unit=unit)[2].any()


def test_every_ordinary_token_is_chosen_equally_often():
    _, _, chosen = mask([row(23)] * 9000)
    rate = chosen[:, 1:21].mean(axis=0)
    np.testing.assert_allclose(rate, 3 / 20, atol=0.015)


@every_unit
def test_a_slow_loop_over_sequences_words_and_spans_chooses_the_same(unit):
    rng = np.random.default_rng(5)
    rows = [[text(rng, int(n)) for n in rng.integers(7, 43, rng.integers(1, 6))] for _ in range(173)]
    settings = MaskingSettings(unit=unit)
    ids, sequence_ids = pack(rows)
    draws = rng.random((settings.draws, *ids.shape))
    for probability in (0.15, 0.5):
        _, masked, chosen = mask_packed(rows, words=PIECES, draws=draws, unit=unit, probability=probability)
        for i in range(len(rows)):
            slow = choose_slowly(ids[i], sequence_ids[i], draws[:, i], settings, probability)
            assert np.flatnonzero(chosen[i]).tolist() == sorted(slow)
            hidden = [column for column in slow if draws[1, i, slow[column] if unit == "span" else column] < 0.8]
            assert np.flatnonzero((masked[i] == MASK) & (ids[i] != MASK)).tolist() == sorted(hidden)


@pytest.mark.parametrize("unit", ["word", "span"])
def test_the_pieces_of_a_word_are_chosen_together(unit):
    un, want, ed, comma, runn, ing = range(5, 11)
    words = vocabulary(11, continuation=[want, ed, ing])
    line = [CLS, un, want, ed, comma, runn, ing, SEP]
    _, _, chosen = mask([line] * 10_000, words=words, unit=unit, probability=0.4)  # round(8 * 0.4) = 3 to guess
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(1, 2, 3), (4, 5, 6)}
    _, _, chosen = mask([line] * 10_000, words=words, unit=unit)  # one to guess: only the comma fits
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(4,)}


@pytest.mark.parametrize("unit", ["word", "span"])
def test_a_word_longer_than_the_quota_is_taken_where_no_other_fits(unit):
    words = vocabulary(11, continuation=[6, 7])
    _, _, chosen = mask([[CLS, 5, 6, 7, 6, SEP, SEP]], words=words, unit=unit)
    assert np.flatnonzero(chosen[0]).tolist() == [1, 2, 3, 4]


def test_pieces_at_the_cut_edge_of_a_text_are_a_word_of_their_own():
    words = vocabulary(11, continuation=[6, 7])
    _, _, chosen = mask([[CLS, 6, 7, SEP, 7, 6, 6, SEP]] * 500, words=words, unit="word", probability=0.3)  # 2 to guess
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(1, 2)}
    _, _, chosen = mask_packed([[[5, 6], [6, 7, 6]]] * 500, words=words, unit="word")  # nothing special
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(0, 1, 2, 3, 4)}


def test_spans_are_as_long_as_a_geometric_distribution_that_is_cut_at_ten_words():
    _, _, chosen, starts = separate_spans(rows=3001)
    runs = np.cumprod(chosen[:, starts[:, None] + np.arange(11)], axis=2).sum(axis=2)
    expected = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    counts = np.bincount(runs.ravel(), minlength=12)
    assert counts[0] == counts[11] == 0
    assert stats.chisquare(counts[1:11], expected * runs.size).pvalue > 0.01
    assert abs(runs.mean() - 3.797) < 0.05


def test_what_becomes_of_a_span_is_decided_once():
    ids, masked, chosen, starts = separate_spans(rows=503)
    columns = starts[:, None] + np.arange(10)
    inside = np.cumprod(chosen[:, columns], axis=2) == 1
    hidden, same = (masked == MASK)[:, columns], (masked == ids)[:, columns]
    for fate, share, at_least in ((hidden, 0.8, 1), (same, 0.1, 0.998)):  # a random token may be the original
        assert ((fate & inside).any(axis=2) == (fate | ~inside).all(axis=2)).mean() >= at_least
        assert abs(fate[:, :, 0].mean() - share) < 0.02
    replaced = masked[:, columns][inside & ~hidden & ~same]
    assert len(np.unique(replaced)) > 800  # each of its tokens is another


def separate_spans(rows: int):
    """Spans of words of one piece that begin 11 apart and so touch none; the first ten always fit the quota of 101."""
    rng = np.random.default_rng(11)
    draws = rng.random((4, rows, 503))
    starts = rng.permutation(np.arange(1, 490, 11))
    draws[0, :, starts] = np.arange(len(starts))[:, None] / 1e9
    ids, masked, chosen = mask(
        [row(503, word=800)] * rows, words=vocabulary(1009), draws=draws, unit="span", probability=0.2
    )
    assert (chosen.sum(axis=1) == 101).all()
    return ids, masked, chosen, starts[:10]


def test_spans_end_at_special_tokens_and_at_the_end_of_a_sequence():
    draws = np.full((4, 1, 14), 0.999)  # all spans have ten words
    draws[0, 0, [2, 9]] = 0.5
    sequences = [[CLS, 7, 7, 7, SEP, 7, 7], [7, 7, 7, 7, UNK, 7, SEP]]
    _, _, chosen = mask_packed([sequences], draws=draws, unit="span", probability=0.3)  # two of each seven to guess
    assert np.flatnonzero(chosen[0]).tolist() == [2, 3, 9, 10]
    _, _, chosen = mask_packed([sequences], draws=draws, unit="span", probability=0.43)  # three: the next span begins
    assert np.flatnonzero(chosen[0]).tolist() == [1, 2, 3, 7, 9, 10]


@every_unit
def test_a_row_is_masked_alike_alone_and_among_longer_ones(unit):
    rng = np.random.default_rng(3)
    rows = [[text(rng, n) for n in lengths] for lengths in ([31, 11], [17, 23, 29], [67])]
    ids, sequence_ids = pack(rows)
    settings = MaskingSettings(unit=unit)
    draws = rng.random((settings.draws, *ids.shape))
    draws[0] = np.round(draws[0], 1)  # equal numbers too
    continues = PIECES.continuation[ids]
    together = mask_tokens(ids, sequence_ids, continues, draws, PIECES, settings, 0.3)
    for i, width in enumerate([42, 69, 67]):
        own = (slice(i, i + 1), slice(width))
        alone = mask_tokens(
            ids[own], sequence_ids[own], continues[own], draws[(slice(None), *own)], PIECES, settings, 0.3
        )
        for whole, part in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[own], part)


def test_the_share_to_guess_falls_linearly_over_the_run():
    falling = MaskingSettings(initial_probability=0.3, probability=0.15)
    shares = [masking_probability(progress, falling) for progress in (0, 0.2, 0.5, 1, 1.1)]
    assert shares == pytest.approx([0.3, 0.27, 0.225, 0.15, 0.15], abs=1e-15)
    assert shares[0] == 0.3
    assert shares[3] == 0.15  # to the last bit: evaluation masks as much
    assert masking_probability(0.3, MaskingSettings(probability=0.4)) == 0.4
