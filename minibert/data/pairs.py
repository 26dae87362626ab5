"""Which two texts stand in one instance, and does the second follow the first? Next-sentence pairs as in BERT.

    a document of sentences         s s s s s s s s s s
    chunks of about max_length      [ s s s s ][ s s s s ][ s s ]
    text A and text B               [ A|B B B ]     B follows A: label 0
                                    [ A A|- - ]     B is from another document: label 1; the next chunk takes the rest

A plan holds positions only. It is computed from the lengths of the sentences, all documents in lockstep, and reads
tokens only to see whether two sentences of equal length are the same text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minibert.data.random import generator
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

Integers = npt.NDArray[np.integer[Any]]
Booleans = npt.NDArray[np.bool_]

SPECIALS = 3
"""[CLS] A [SEP] B [SEP]"""

# The third number of a generator's key (seed, epoch, stage, ...). It is never 0: trailing zeros do not change a seed.
PLAN, MASKS = 1, 2

_REDRAWS = 32


class SentenceStore(Protocol):
    """What pairs need of a corpus: documents of sentences of tokens, none of them empty, in one flat stream."""

    @property
    def document_offsets(self) -> Integers:
        """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""

    @property
    def sentence_offsets(self) -> Integers:
        """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""

    def tokens(self, begin: int, end: int, /) -> Integers:
        """The ids of the tokens from `begin` to `end` of the stream."""


@dataclass(frozen=True)
class PairSettings:
    """How long the two texts of an instance are."""

    max_length: PositiveInt = 128
    """Tokens in an instance, [CLS] and both [SEP] included."""

    short_sequence_probability: UnitInterval = 0.1
    """Share of chunks cut to a random shorter length, so that the model meets short inputs too."""

    def __post_init__(self) -> None:
        if self.max_length < SPECIALS + 2:
            raise UserError(f"max_length is {self.max_length}; three special tokens and two texts need 5 at least")

    @property
    def budget(self) -> int:
        """Tokens left for the two texts."""
        return self.max_length - SPECIALS


@dataclass(frozen=True)
class Pairs:
    """One epoch of pairs: texts A and B of instance i are two ranges of the token stream that fit the budget."""

    a_begin: Integers
    a_end: Integers
    b_begin: Integers
    b_end: Integers
    is_random: Booleans
    """False (0): B follows A. True (1): B is from another document."""
    same_text: int
    """Random pairs whose B begins with A's first or next sentence, word for word: no other was found."""

    def __len__(self) -> int:
        return len(self.a_begin)


def plan_pairs(corpus: SentenceStore, settings: PairSettings, *, seed: int, epoch: int) -> Pairs:
    """The pairs of one epoch in random order: a function of (corpus, settings, seed, epoch).

    The rules are those of google-research/bert, create_pretraining_data.py, but for two. A coin for each chunk says
    whether it is short; the original tosses one for a document, and as a document in short pieces gives many of them,
    far more instances are short than it says. And half of all pairs are random, as near as the text allows; the
    original tosses a fair coin, and the chunks of one sentence, which are always random, come on top.

    Raises:
        UserError: there are fewer than two documents, so that nothing could be a random second text.
    """
    _check_documents(corpus)
    rng = generator(seed, epoch, PLAN)
    chunks = _cut(corpus, settings, _coin(corpus, settings, rng), rng)
    chunks = chunks.take(rng.permutation(len(chunks.begin)))
    begin, end = chunks.middle.copy(), chunks.end.copy()  # the sentences of B
    negative = np.flatnonzero(chunks.is_random)
    begin[negative], end[negative], same_text = _random_texts(corpus, chunks.take(negative), rng)

    offsets = corpus.sentence_offsets
    a_begin, a_end = offsets[chunks.begin], offsets[chunks.middle]
    b_begin, b_end = offsets[begin], offsets[end]
    a_kept, b_kept = _kept(a_end - a_begin, b_end - b_begin, settings.budget)
    return Pairs(
        *_truncate(a_begin, a_end, a_kept, rng), *_truncate(b_begin, b_end, b_kept, rng), chunks.is_random, same_text
    )


def _check_documents(corpus: SentenceStore) -> None:
    documents = len(corpus.document_offsets) - 1
    if documents < 2:
        raise UserError(
            f"this part of the corpus has {documents} document{'' if documents == 1 else 's'}; next-sentence pairs "
            "draw the second text from another, so they need 2 at least (in a text file a blank line ends a document)"
        )


@dataclass(frozen=True)
class _Chunks:
    """Ranges of sentences: A is `begin` to `middle`, the rest of the chunk `middle` to `end`."""

    document: Integers
    begin: Integers
    middle: Integers
    end: Integers
    target: Integers
    is_random: Booleans

    def take(self, rows: Integers) -> "_Chunks":
        return _Chunks(*(getattr(self, field.name)[rows] for field in fields(self)))


def _coin(corpus: SentenceStore, settings: PairSettings, rng: np.random.Generator) -> float:
    """How often a chunk that has the choice is given a random text, so that half of all chunks have one."""
    coin = 0.5
    for _ in range(2):  # how many have no choice depends a little on the coin itself
        chunks = _cut(corpus, settings, coin, rng)
        forced = float(np.mean(chunks.end - chunks.begin == 1))
        coin = (0.5 - forced) / (1 - forced) if forced < 0.5 else 0.0
    return coin


def _cut(corpus: SentenceStore, settings: PairSettings, coin: float, rng: np.random.Generator) -> _Chunks:
    steps = list(_lockstep(corpus, settings, coin, rng))
    return _Chunks(*(np.concatenate([getattr(step, field.name) for step in steps]) for field in fields(_Chunks)))


def _lockstep(
    corpus: SentenceStore, settings: PairSettings, coin: float, rng: np.random.Generator
) -> Iterator[_Chunks]:
    """Step k yields the k-th chunk of every document that still has sentences."""
    begin, last = corpus.document_offsets[:-1], corpus.document_offsets[1:]
    document = np.arange(len(begin))
    while len(document):
        short, length, cut, toss = rng.random((4, len(document)))
        target = np.where(
            short < settings.short_sequence_probability,
            2 + (length * (settings.budget - 1)).astype(np.int64),  # 2 to budget
            settings.budget,
        )
        end = np.minimum(_reach(corpus, begin, target), last)
        middle = begin + 1 + (cut * (end - begin - 1)).astype(np.int64)  # A has 1 to n - 1 of n sentences
        is_random = (toss < coin) | (end - begin == 1)
        yield _Chunks(document, begin, middle, end, target, is_random)
        begin = np.where(is_random, middle, end)
        active = begin < last
        document, begin, last = document[active], begin[active], last[active]


def _reach(corpus: SentenceStore, begin: Integers, tokens: Integers) -> Integers:
    """The first sentence at whose beginning at least `tokens` tokens have passed since sentence `begin`."""
    offsets = corpus.sentence_offsets
    order = np.argsort(begin)  # sorted questions find their neighbours in the cache: ten times faster
    reached = np.empty_like(begin)
    reached[order] = np.searchsorted(offsets, (offsets[begin] + tokens)[order])
    return reached


def _random_texts(corpus: SentenceStore, chunks: _Chunks, rng: np.random.Generator) -> tuple[Integers, Integers, int]:
    """Sentences of another document for each chunk: where they begin and end, and how many are the same text."""
    begin, end = _draw_texts(corpus, chunks, rng)
    again = _same_text(corpus, chunks, begin)
    for _ in range(_REDRAWS):
        if not len(again):
            break
        rows = chunks.take(again)
        begin[again], end[again] = _draw_texts(corpus, rows, rng)
        again = again[_same_text(corpus, rows, begin[again])]
    return begin, end, len(again)


def _draw_texts(corpus: SentenceStore, chunks: _Chunks, rng: np.random.Generator) -> tuple[Integers, Integers]:
    documents = corpus.document_offsets
    other = rng.integers(len(documents) - 2, size=len(chunks.document))
    other += other >= chunks.document  # every document but the chunk's own is equally likely
    begin = rng.integers(documents[other], documents[other + 1])
    length_a = corpus.sentence_offsets[chunks.middle] - corpus.sentence_offsets[chunks.begin]
    end = _reach(corpus, begin, np.maximum(chunks.target - length_a, 1))
    return begin, np.minimum(end, documents[other + 1])


def _same_text(corpus: SentenceStore, chunks: _Chunks, sentence: Integers) -> Integers:
    """The rows where `sentence` equals A's first sentence or the one that truly follows A."""
    equal = _equal_sentences(corpus, sentence, chunks.begin)
    rest = np.flatnonzero(~equal & (chunks.middle < corpus.document_offsets[chunks.document + 1]))
    equal[rest] = _equal_sentences(corpus, sentence[rest], chunks.middle[rest])
    return np.flatnonzero(equal)


def _equal_sentences(corpus: SentenceStore, left: Integers, right: Integers) -> Booleans:
    offsets = corpus.sentence_offsets
    equal: Booleans = offsets[left + 1] - offsets[left] == offsets[right + 1] - offsets[right]
    for row in np.flatnonzero(equal):
        x, y = (corpus.tokens(int(offsets[s]), int(offsets[s + 1])) for s in (left[row], right[row]))
        equal[row] = x.tobytes() == y.tobytes()
    return equal


def _kept(a: Integers, b: Integers, budget: int) -> tuple[Integers, Integers]:
    """Lengths after the longer of the two has lost a token, B where they are equal, until both fit the budget."""
    return np.minimum(a, np.maximum(budget - b, -(-budget // 2))), np.minimum(b, np.maximum(budget - a, budget // 2))


def _truncate(begin: Integers, end: Integers, kept: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Drop tokens at both ends: for each one a coin decides which."""
    lost = end - begin - kept
    front = np.zeros_like(lost)
    front[lost > 0] = rng.binomial(lost[lost > 0], 0.5)
    return begin + front, begin + front + kept
