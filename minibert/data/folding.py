"""Which words does a stream of token ids hold, when case, accents, punctuation and the cut into pieces do not count?

    The  val  ##ley  ,  DRY  .         ids
    the  valley         dry            a 64-bit hash of each word: the sum over its characters of code * P^place

So a text in other case or with other commas has the same words, though its ids differ. Of tokenizers that mark what
continues a word in another way than "##", each piece is a word.
"""

import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from minibert.data.token_store import Ids
from minibert.data.wordpiece import CONTINUATION, LONGEST_WORD

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

UNKNOWN = "[UNK]"

_BASE = 0x9E3779B97F4A7C15  # odd, so that no power of it is 0 modulo 2^64
_POWERS = np.cumprod(np.full(8 * LONGEST_WORD, _BASE, np.uint64)) * np.uint64(pow(_BASE, -1, 1 << 64))


class Words(NamedTuple):
    """The words of documents, in order."""

    hashes: Hashes
    """[words]"""
    document: Integers
    """[words], the number of the document of each."""


@dataclass(frozen=True, eq=False)
class Folding:
    """What each token id adds to the hash of a word."""

    hashes: Hashes
    """[vocabulary], of the characters of a piece as they would begin a word; 0 where it has none."""
    lengths: npt.NDArray[np.int64]
    """[vocabulary], the number of these characters."""
    continues: npt.NDArray[np.bool_]
    """[vocabulary], the pieces that continue a word."""

    @staticmethod
    def of(tokenizer: Tokenizer) -> "Folding":
        """The folding of a tokenizer's pieces. What the tokenizer does not know, [UNK], counts as little as a comma."""
        pieces = tokenizer.get_vocab()
        size = 1 + max(pieces.values())
        hashes, lengths, continues = np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.bool_)
        for piece, id_ in pieces.items():
            letters = "" if piece == UNKNOWN else _letters(piece.removeprefix(CONTINUATION))
            codes = _mixed(np.array([ord(letter) for letter in letters], np.uint64))
            hashes[id_], lengths[id_] = (codes * _POWERS[: len(codes)]).sum(dtype=np.uint64), len(codes)
            continues[id_] = piece.startswith(CONTINUATION)
        return Folding(hashes, lengths, continues)

    def words(self, tokens: Ids, lengths: Integers) -> Words:
        """The words of documents of so many tokens each, none of them empty."""
        begins = ~self.continues[tokens]
        begins[np.cumsum(lengths) - lengths] = True
        first = np.flatnonzero(begins)
        if not len(first):
            return Words(np.empty(0, np.uint64), np.empty(0, np.int64))
        sizes, values = self.lengths[tokens], self.hashes[tokens]
        place = np.cumsum(sizes) - sizes
        rest = np.flatnonzero(~begins)
        word = np.cumsum(begins)[rest] - 1
        values[rest] *= _POWERS[np.minimum(place[rest] - place[first[word]], len(_POWERS) - 1)]
        hashes, filled = np.add.reduceat(values, first), np.add.reduceat(sizes, first) > 0
        document = np.repeat(np.arange(len(lengths)), lengths)[first]
        return Words(hashes[filled], document[filled])


def _letters(piece: str) -> str:
    """The letters and digits of a piece in lower case and without accents."""
    parts = unicodedata.normalize("NFD", piece).lower()
    return "".join(letter for letter in parts if letter.isalnum())


def _mixed(codes: Hashes) -> Hashes:
    """Random numbers that depend on the codes alone: splitmix64."""
    mixed = (codes + np.uint64(1)) * np.uint64(_BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
