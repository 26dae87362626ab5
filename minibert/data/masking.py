"""Which tokens must the model guess? 15 % are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay.

    input      [CLS] the cat  sat  on the mat  [SEP] [PAD]
    masked     [CLS] the cat [MASK] on the dog [SEP] [PAD]
    labels      -100 ...      sat  ...     mat  ...   -100

Chosen are single tokens, whole words, or spans of words; several sequences may stand in a row, each with its own quota.
All go one way: words are put in a random order, and taken in it where they fit the quota. A token alone is a word of
one piece, and the words of a span come one after another in that order.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

Integers = npt.NDArray[np.integer[Any]]
Booleans = npt.NDArray[np.bool_]
Uniform = npt.NDArray[np.float64]

IGNORED = -100
"""The label of a token that is not to be guessed."""

_SPAN_LENGTHS = np.cumsum(0.8 ** np.arange(10))[:-1] / np.sum(0.8 ** np.arange(10))
"""Chances that a span has at most 1, 2, ... 9 words: geometric with p = 0.2, cut at 10 words; 3.8 in the mean."""

# Bits of a column in a row and of a word in a batch, beside 32 of a draw; whatever is sorted comes before _LAST.
_COLUMN, _NUMBER = 16, 31
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class MaskingSettings:
    """How many tokens are chosen, in which units, and what becomes of them."""

    probability: UnitInterval = 0.15
    """Share of the tokens to guess, at the end of the run and always in evaluation; each instance has at least one."""

    initial_probability: UnitInterval | None = None
    """This share at the beginning; it changes linearly to `probability` over the run. Null: the same throughout."""

    mask_share: UnitInterval = 0.8
    """Share of the chosen tokens that become [MASK]."""

    random_share: UnitInterval = 0.1
    """Share of the chosen tokens that become a random token; the rest stay as they are."""

    unit: Literal["token", "word", "span"] = "token"
    """Choose single tokens, whole words with all their pieces, or spans of 1 to 10 words (SpanBERT)."""

    max_predictions: PositiveInt | None = None
    """At most so many tokens to guess in an instance; no limit where it is null."""

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"mask_share {self.mask_share} and random_share {self.random_share} are more than the whole together"
            )

    @property
    def draws(self) -> int:
        """How many random numbers a token needs."""
        return 4 if self.unit == "span" else 3


def masking_probability(progress: float, settings: MaskingSettings) -> float:
    """The share of the tokens to guess when `progress`, from 0 to 1, of the run is over."""
    if settings.initial_probability is None:
        return settings.probability
    progress = min(max(progress, 0.0), 1.0)
    return (1 - progress) * settings.initial_probability + progress * settings.probability


def mask_tokens(
    input_ids: Integers,
    sequence_ids: Integers,
    continues: Booleans,
    draws: Uniform,
    vocabulary: Vocabulary,
    settings: MaskingSettings,
    probability: float,
) -> tuple[Integers, Integers]:
    """The masked ids and the labels, both [rows, width]; a row depends on its own ids and draws alone.

    Args:
        input_ids: [rows, width].
        sequence_ids: [rows, width], 1, 2, ... for the tokens of the sequences of a row, 0 for padding.
        continues: [rows, width], True at a token that continues the word of the token before it. The first ordinary
            token of a sequence, or after a special one, begins a word all the same. Not read for single tokens.
        draws: [settings.draws, rows, width], uniform in [0, 1): in which order words or spans are chosen, what becomes
            of a token, its replacement, the length of a span.
        vocabulary: says which ids are special: they are never chosen and never a replacement, at any probability.
        settings: which units are chosen, and what becomes of them.
        probability: share of the tokens to guess.

    A sequence of n tokens, special ones included, has max(1, round(n * probability)) to guess, at most
    `max_predictions` and at most its ordinary tokens (google-research/bert, create_pretraining_data.py). Words are
    taken in random order where they still fit; if none fits, the first is taken all the same. A sequence of special
    tokens only has nothing to guess.

    A span (Joshi et al. 2020, SpanBERT, section 3.1) begins at a random word and reaches over 1 to 10 words, 3.8 in the
    mean, but not over a special token or the end of its sequence; the last is shortened to what fits the quota. Where
    it begins in another it adds what reaches beyond. Whether its tokens become [MASK], random or stay is decided once
    for a span, for other units for each token.
    """
    ordinary = ~vocabulary.special[input_ids] & (sequence_ids > 0)
    words = _find_words(ordinary, sequence_ids, np.zeros_like(ordinary) if settings.unit == "token" else continues)
    which, fate = _share_in_spans(words, draws) if settings.unit == "span" else draws[:2]
    order = _order(words.size, sequence_ids, which)
    size = words.size.reshape(-1)[order]
    taken = _take(size, words.counts, _quota(words.lengths, settings, probability))
    chosen = _places(order[taken], size[taken])
    return _hide(input_ids, chosen, fate.reshape(-1)[chosen], draws[2].reshape(-1)[chosen], vocabulary, settings)


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of a batch. A place is the number of a token in the flattened batch."""

    size: Integers
    """[rows, width], how many tokens the word has that begins here; 0 where none does."""
    begin: Integers
    """[words], the places where words begin."""
    counts: Integers
    """[sequences, padding among them], their numbers of words."""
    lengths: Integers
    """[sequences, padding among them], their numbers of tokens, special ones included."""


def _find_words(ordinary: Booleans, sequence_ids: Integers, continues: Booleans) -> _Words:
    edges = np.ones(ordinary.shape, dtype=bool)
    edges[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    inside = ordinary & continues & ~edges
    inside[:, 1:] &= ordinary[:, :-1]

    size = np.zeros(ordinary.size, dtype=np.int64)
    outside = np.flatnonzero(~inside)
    size[outside] = np.diff(outside, append=ordinary.size)
    size *= ordinary.reshape(-1)
    begin, edge = np.flatnonzero(size), np.append(np.flatnonzero(edges), ordinary.size)
    return _Words(size.reshape(ordinary.shape), begin, np.diff(np.searchsorted(begin, edge)), np.diff(edge))


def _share_in_spans(words: _Words, draws: Uniform) -> Uniform:
    """The first two draws [2, rows, width]; all tokens of a span have those of its first word.

    A span begins at each word; a word belongs to that which is drawn first of all that reach it.
    """
    first, length = draws[:2].reshape(2, -1), draws[3].reshape(-1)[words.begin]
    number, size = np.arange(len(words.begin)), words.size.reshape(-1)[words.begin]
    span = np.minimum(1 + np.searchsorted(_SPAN_LENGTHS, length, side="right"), _words_ahead(words))
    drawn = _whole(first[0, words.begin]) << _NUMBER | number
    earliest = drawn.copy()
    for shift in range(1, min(10, len(number))):
        reaching = np.where(span[:-shift] > shift, drawn[:-shift], _LAST)
        earliest[shift:] = np.minimum(earliest[shift:], reaching)

    tokens, leader = _places(words.begin, size), np.repeat(words.begin[earliest & (1 << _NUMBER) - 1], size)
    shared = first.copy()
    for to, of in zip(shared, first, strict=True):
        to[tokens] = of[leader]
    return shared.reshape(2, *words.size.shape)


def _words_ahead(words: _Words) -> Integers:
    """[words]: from a word, itself counted, to the end of its sequence or to a special token."""
    begin, sequence = words.begin, np.repeat(np.arange(len(words.counts)), words.counts)
    end = begin + words.size.reshape(-1)[begin]
    gap = (begin[1:] != end[:-1]) | (sequence[1:] != sequence[:-1])
    last = np.append(np.flatnonzero(gap) + 1, len(begin))
    return np.repeat(last, np.diff(last, prepend=0)) - np.arange(len(begin))


def _order(size: Integers, sequence_ids: Integers, which: Uniform) -> Integers:
    """[words]: the places where they begin, sequence by sequence, drawn first first."""
    rows, width = size.shape
    assert width <= 1 << _COLUMN, "a column does not fit its bits"
    keys = np.left_shift(sequence_ids, 32 + _COLUMN, dtype=np.int64) | _whole(which) << _COLUMN | np.arange(width)
    keys[size == 0] = _LAST
    keys.sort(axis=1)
    places = (keys & (1 << _COLUMN) - 1) + width * np.arange(rows)[:, None]
    return places[keys < _LAST]


def _whole(draws: Uniform) -> Integers:
    """Draws as whole numbers of 32 bits: with a place in the lower bits they are sorted fast, and no two are equal."""
    return (draws * 2.0**32).astype(np.int64)


def _quota(lengths: Integers, settings: MaskingSettings, probability: float) -> Integers:
    wanted = np.maximum(1, np.rint(lengths * probability).astype(np.int64))
    return wanted if settings.max_predictions is None else np.minimum(wanted, settings.max_predictions)


def _take(size: Integers, counts: Integers, quota: Integers) -> Booleans:
    """[words], sequence by sequence in the order in which they are drawn: True for those that still fit the quota.

    Each round takes what comes before the first word that does not fit. The room only shrinks, so that word and all as
    long are out: there is hardly a round more than there are different sizes.
    """
    taken = np.zeros(len(size), dtype=bool)
    left, rest, waiting = quota.copy(), np.arange(len(size)), counts
    while len(rest):
        end = np.cumsum(waiting)
        before = np.append(0, np.cumsum(size[rest]))  # tokens in the words before each, and in all
        used = before[end - waiting]
        cut = np.minimum(np.searchsorted(before, used + left, side="right") - 1, end)
        left -= before[cut] - used

        sequence = np.repeat(np.arange(len(waiting)), waiting)
        fits = np.arange(len(rest)) < cut[sequence]
        taken[rest[fits]] = True
        later = ~fits & (size[rest] <= left[sequence])
        rest, waiting = rest[later], np.bincount(sequence[later], minlength=len(waiting))
    none = (left == quota) & (counts > 0)
    taken[(np.cumsum(counts) - counts)[none]] = True
    return taken


def _places(begin: Integers, size: Integers) -> Integers:
    """The places of all tokens of words that begin at `begin`."""
    end = np.cumsum(size)
    return np.arange(size.sum()) + np.repeat(begin - (end - size), size)


def _hide(
    input_ids: Integers,
    chosen: Integers,
    fate: Uniform,
    replacement: Uniform,
    vocabulary: Vocabulary,
    settings: MaskingSettings,
) -> tuple[Integers, Integers]:
    """The masked ids and the labels, with the tokens at the places `chosen` to be guessed."""
    hidden = fate < settings.mask_share
    replaced = ~hidden & (fate < settings.mask_share + settings.random_share)
    ordinary = np.flatnonzero(~vocabulary.special)

    masked, labels = input_ids.flatten(), np.full(input_ids.size, IGNORED, dtype=np.int64)
    labels[chosen] = masked[chosen]
    masked[chosen[hidden]] = vocabulary.mask
    masked[chosen[replaced]] = ordinary[(replacement[replaced] * len(ordinary)).astype(np.int64)]
    return masked.reshape(input_ids.shape), labels.reshape(input_ids.shape)
