"""Which sentences are read together? An epoch is cut into blocks of about 65,536 sentences, each planned by itself.

    documents     [ s s s ... s s s ][ s s ][ s s s s ]      sentences in their order
    spans         [ s s s ][ . . . ][ s s s ][ s s ][ ... ]  of at most 128 sentences
    an epoch      the spans in random order, cut into blocks
    the stream    the blocks of epoch 0, those of epoch 1, ...

The order is computed, not stored, so any block is found at once, and a plan needs memory for one block alone. The
offsets of a corpus may be files that are mapped; a block touches only the few places where its own sentences are.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minibert.data.order import Permutation
from minibert.data.random import generator

Integers = npt.NDArray[np.integer[Any]]
Booleans = npt.NDArray[np.bool_]

BLOCK = 65_536
"""Sentences in a block, about: a tenth of a second of planning."""

SPAN = 128
"""Sentences of a document that are read on end, at most; a book would fill a block alone."""

# The third number of a generator's key (seed, epoch, stage, ...). It is never 0: trailing zeros do not change a seed.
PLAN, MASKS, ORDER = 1, 2, 3

_GROUP = 64
_CHUNK = 1 << 14  # groups of documents that are counted at once


class SentenceStore(Protocol):
    """What pairs need of a corpus: documents of sentences of tokens, none of them empty, in one flat stream.

    It may have a method `continues(begin, end)` as well: which of those tokens continue the word before them, as
    Booleans, or None where the corpus marks no words.
    """

    @property
    def document_offsets(self) -> Integers:
        """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""

    @property
    def sentence_offsets(self) -> Integers:
        """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""

    def tokens(self, begin: int, end: int, /) -> Integers:
        """The ids of the tokens from `begin` to `end` of the stream."""


@dataclass(frozen=True)
class Block:
    """Sentences that are planned together, span after span; [sentences] each, but for `passed`."""

    document: Integers
    sentence: Integers
    """The number of the sentence in the corpus."""
    begin: Integers
    """Where its tokens begin in the stream."""
    last: Integers
    """Where its span ends: the number, in this block, of the sentence after it."""
    passed: Integers
    """[sentences + 1]: tokens of the block before each sentence, and of all."""

    def __len__(self) -> int:
        return len(self.sentence)


class Blocks:
    """The blocks of all epochs of a corpus; it needs 8 bytes for 64 documents.

    Args:
        corpus: its documents.
        seed: another seed is another order.
    """

    def __init__(self, corpus: SentenceStore, seed: int) -> None:
        self.corpus, self.seed = corpus, seed
        self.count = max(1, round((len(corpus.sentence_offsets) - 1) / BLOCK))
        """Blocks in an epoch."""
        self._spans = _Spans(corpus)

    def block(self, number: int) -> Block:
        """Block `number` of the endless stream."""
        epoch, number = divmod(number, self.count)
        order = Permutation(len(self._spans), generator(self.seed, epoch, ORDER))
        begin, end = (b * len(self._spans) // self.count for b in (number, number + 1))
        return _gather(self.corpus.sentence_offsets, *self._spans.find(order[np.arange(begin, end)]))

    def generator(self, stage: int, number: int) -> np.random.Generator:
        """The random numbers of one stage of the work on block `number` of the stream."""
        epoch, number = divmod(number, self.count)
        return generator(self.seed, epoch, stage, number)


def _gather(offsets: Integers, document: Integers, first: Integers, end: Integers) -> Block:
    """The block of some spans, sentences `first` to `end` of a document each."""
    sizes = end - first
    last = np.cumsum(sizes)
    sentence = np.repeat(first - (last - sizes), sizes) + np.arange(sizes.sum())
    begin = offsets[sentence]
    passed = np.concatenate(([0], np.cumsum(offsets[sentence + 1] - begin)))
    return Block(np.repeat(document, sizes), sentence, begin, np.repeat(last, sizes), passed)


class _Spans:
    """All spans of a corpus, numbered; only the number of the first one of every 64th document is kept."""

    def __init__(self, corpus: SentenceStore) -> None:
        self._corpus = corpus  # not its offsets, which would be copied into a worker's message
        offsets = corpus.document_offsets
        documents, chunk = len(offsets) - 1, _CHUNK * _GROUP
        counts = [_in_groups(offsets[d : min(d + chunk, documents) + 1]) for d in range(0, documents, chunk)]
        self._before = np.concatenate([[0], *counts]).cumsum()

    def __len__(self) -> int:
        return int(self._before[-1])

    def find(self, spans: Integers) -> tuple[Integers, Integers, Integers]:
        """The document of each of these spans, and the sentences where it begins and ends."""
        offsets = self._corpus.document_offsets
        group = np.searchsorted(self._before, spans, side="right") - 1
        documents = np.minimum(group[:, None] * _GROUP + np.arange(_GROUP + 1), len(offsets) - 1)
        ends = self._before[group][:, None] + _count(offsets[documents]).cumsum(axis=1)
        document = group * _GROUP + (ends <= spans[:, None]).sum(axis=1)
        first, end = offsets[document], offsets[document + 1]
        left = np.take_along_axis(ends, (document % _GROUP)[:, None], axis=1)[:, 0] - spans  # of the document, and this
        first = first + (_count_of(end - first) - left) * SPAN
        return document, first, np.minimum(first + SPAN, end)


def _in_groups(offsets: Integers) -> Integers:
    """The spans of every 64 documents on end."""
    return np.add.reduceat(_count(offsets), np.arange(0, len(offsets) - 1, _GROUP), dtype=np.int64)


def _count(offsets: Integers) -> Integers:
    """The spans of each of the documents between some offsets, [..., documents + 1] -> [..., documents]."""
    return _count_of(np.diff(offsets))


def _count_of(sentences: Integers) -> Integers:
    return -(-sentences // SPAN)
