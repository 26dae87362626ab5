"""Which training documents stand in the validation part too, but for a few words? Those that share half of its text.

    the valley lay dry for years and ...       words, see `folding`
    [the valley lay dry for]                   shingles: SHINGLE words in a row; a shorter document is one shingle
        [valley lay dry for years]
            [lay dry for years and]

A document is a near copy of another if they share at least half of the different shingles of the one that has fewer
(Broder 1997, "On the resemblance and containment of documents"): a few changed words, other case or punctuation make no
difference, nor does it help to put the text inside a longer one. A phrase in common is not enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from minibert.data.folding import Folding, Hashes, Integers, Words
from minibert.data.token_store import Booleans, Ids, TokenStore

SHINGLE = 5
"""Words in a shingle."""

TOKENS_AT_ONCE = 1 << 17

MOST_SHINGLES = 1 << 23
"""Shingles in the table, 12 bytes each; where there are more, only some of those of the longest documents are in it."""

# A key is a document and a hash: one sort finds what is different in each document.
_HASH_BITS = 44
_MASK = np.uint64((1 << _HASH_BITS) - 1)
_POWERS = np.array([pow(0xD1342543DE82EF95, place, 1 << 64) for place in range(SHINGLE)], np.uint64)
_MOST_PRODUCTS = 1 << 24


@dataclass(frozen=True, eq=False)
class ShingleTable:
    """The shingles of the documents of a store, and in which documents they are."""

    folding: Folding
    hashes: Hashes
    """[shingles], sorted, all different."""
    owners: csr_array
    """[shingles, documents], 1 where a shingle is in a document."""
    sizes: Integers
    """[documents], different shingles."""
    weights: Integers
    """[documents], m where one of m shingles is in the table: 1 but for very long documents."""
    prefilter: Booleans
    """False where no hash begins with these bits."""

    @staticmethod
    def of(store: TokenStore, folding: Folding) -> "ShingleTable":
        """Read the documents of a store, a portion at a time."""
        lengths = np.diff(store.sentence_offsets[store.document_offsets])
        begins = store.sentence_offsets[store.document_offsets[:-1]]
        most = MOST_SHINGLES // max(len(lengths), 1) if lengths.sum() > MOST_SHINGLES else MOST_SHINGLES
        hashes, documents, sizes, weights = [], [], [], []
        for first, last in _portions(lengths):
            tokens = store.tokens(int(begins[first]), int(begins[last - 1] + lengths[last - 1]))
            keys = shingles(folding.words(tokens, lengths[first:last]), last - first)
            document, hash_ = _document(keys), keys & _MASK
            size = np.bincount(document, minlength=last - first)
            weight = 1 << np.ceil(np.log2(np.maximum(size / most, 1))).astype(np.int64)
            taken = hash_ < (np.uint64(1 << _HASH_BITS) // weight.astype(np.uint64))[document]
            hashes.append(hash_[taken])
            documents.append((document[taken] + first).astype(np.int32))
            sizes.append(size)
            weights.append(weight)
        return _table(
            folding, _joined(hashes, np.uint64), _joined(documents, np.int32), _joined(sizes), _joined(weights)
        )

    def near_copies(self, tokens: Ids, lengths: Integers) -> Booleans:
        """[documents], whether each is a near copy of one in the table.

        Args:
            tokens: the documents, one after the other.
            lengths: [documents], tokens of each, none of them 0.
        """
        if not len(self.hashes):
            return np.zeros(len(lengths), np.bool_)
        ends = np.cumsum(lengths)
        parts = [
            self._near_copies(tokens[ends[first] - lengths[first] : ends[last - 1]], lengths[first:last])
            for first, last in _portions(lengths)
        ]
        return _joined(parts, np.bool_)

    def _near_copies(self, tokens: Ids, lengths: Integers) -> Booleans:
        keys = shingles(self.folding.words(tokens, lengths), len(lengths))
        sizes = np.bincount(_document(keys), minlength=len(lengths))
        document, row = self._find(keys)
        copies = np.zeros(len(lengths), np.bool_)
        for first, last in self._products(document, row):
            found = csr_array(
                (np.ones(last - first, np.int32), (document[first:last], row[first:last])),
                (len(lengths), len(self.hashes)),
            )
            shared = (found @ self.owners).tocoo()
            smaller = np.minimum(sizes[shared.row], self.sizes[shared.col])
            copies[shared.row[2 * shared.data * self.weights[shared.col] >= smaller]] = True
        return copies

    def _find(self, keys: Hashes) -> tuple[Integers, Integers]:
        """The document and the row of the table of each key whose shingle is in the table."""
        hashes = keys & _MASK
        maybe = np.flatnonzero(self.prefilter[_first_bits(hashes, self.prefilter)])
        row = np.searchsorted(self.hashes, hashes[maybe])
        found = self.hashes[np.minimum(row, len(self.hashes) - 1)] == hashes[maybe]
        return _document(keys[maybe[found]]), row[found]

    def _products(self, document: Integers, row: Integers) -> Iterator[tuple[int, int]]:
        """Ranges of what was found, whole documents each, that have not too many owners in all."""
        owners = np.cumsum(np.diff(self.owners.indptr)[row])
        first = 0
        while first < len(row):
            before = owners[first - 1] if first else 0
            reached = min(int(np.searchsorted(owners, before + _MOST_PRODUCTS)), len(row) - 1)
            last = int(np.searchsorted(document, document[reached], side="right"))
            yield first, last
            first = last


def shingles(words: Words, documents: int) -> Hashes:
    """The different shingles of each of so many documents: keys of document and hash, sorted."""
    hashes, document = words
    counts = np.bincount(document, minlength=documents)
    ends = len(hashes) - SHINGLE + 1
    windows = sum(hashes[place : max(ends + place, 0)] * power for place, power in enumerate(_POWERS))
    first = document[: max(ends, 0)]
    inside = first == document[SHINGLE - 1 :]
    whole, short = _whole(words, counts)
    keys = np.sort(np.concatenate((_keys(windows[inside], first[inside]), _keys(whole, short))))
    return keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]


def _whole(words: Words, counts: Integers) -> tuple[Hashes, Integers]:
    """One hash for each document of fewer than `SHINGLE` words, if it has any, and the number of the document."""
    short = np.flatnonzero((counts > 0) & (counts < SHINGLE)).astype(np.int64)
    if not len(short):
        return np.empty(0, np.uint64), short
    is_short = (counts < SHINGLE)[words.document]
    begins = np.cumsum(counts[short]) - counts[short]
    place = np.arange(counts[short].sum()) - np.repeat(begins, counts[short])
    sums: Hashes = np.add.reduceat(words.hashes[is_short] * _POWERS[place], begins)
    return sums ^ counts[short].astype(np.uint64), short


def _keys(hashes: Hashes, document: Integers) -> Hashes:
    return document.astype(np.uint64) << np.uint64(_HASH_BITS) | hashes >> np.uint64(64 - _HASH_BITS)


def _document(keys: Hashes) -> Integers:
    return (keys >> np.uint64(_HASH_BITS)).astype(np.int64)


def _portions(lengths: Integers) -> Iterator[tuple[int, int]]:
    """Ranges of documents of about `TOKENS_AT_ONCE` tokens, so that their arrays stay in the cache."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = ends[first - 1] if first else 0
        last = min(int(np.searchsorted(ends, before + TOKENS_AT_ONCE)) + 1, len(lengths))
        yield first, last
        first = last


def _table(folding: Folding, hashes: Hashes, documents: Integers, sizes: Integers, weights: Integers) -> ShingleTable:
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)])
    ones, indptr = np.ones(len(hashes), np.int32), np.append(begins, len(hashes))
    owners = csr_array((ones, documents[order], indptr), (len(begins), len(sizes)))
    prefilter = np.zeros(1 << min(max(int(32 * len(begins)).bit_length(), 10), 26), np.bool_)
    hashes = hashes[begins]
    prefilter[_first_bits(hashes, prefilter)] = True
    return ShingleTable(folding, hashes, owners, sizes, weights, prefilter)


def _first_bits(hashes: Hashes, table: Booleans) -> Hashes:
    return hashes >> np.uint64(_HASH_BITS - (len(table).bit_length() - 1))


def _joined(parts: list[npt.NDArray[Any]], type_: Any = np.int64) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, type_), *parts])
