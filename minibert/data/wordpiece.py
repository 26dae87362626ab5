"""How is a vocabulary learned? The most frequent pair of neighbouring pieces becomes one piece, again and again.

    "hug" 10 times, "hugs" 5 times     h ##u ##g     h ##u ##g ##s
    ##u ##g is seen 15 times           h ##ug        h ##ug ##s        new piece ##ug
    h ##ug is seen 15 times            hug           hug ##s           new piece hug

This is byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909) with the pieces of WordPiece, where
"##" marks what continues a word. Of pairs that are equally frequent the first by its strings is taken, so that the same
words give the same vocabulary, whatever order they come in.
"""

import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

CONTINUATION = "##"
"""What a piece begins with that continues a word."""

LONGEST_WORD = 100
"""BERT reads a longer word, in characters, as one [UNK], whatever the vocabulary."""

CHUNK = re.compile("[^ \t\r\n!-/:-@\\[-`{-~\u4e00-\u9fff]+|[^ \t\r\n]")
"""A run of characters that BERT's words do not cross: it ends at ASCII white space, and before and after ASCII
punctuation and common Han characters, whatever is beside them."""


def count_words(texts: Iterable[str], *, normalizer: Normalizer, pre_tokenizer: PreTokenizer) -> Counter[str]:
    """Count the words that BERT's normalizer and pre-tokenizer make of the texts, but for those too long to be split.

    The texts are read once; memory holds one of them and each distinct chunk. To normalize is slow, so it is done for
    distinct chunks only, which end where BERT ends a word for certain.
    """
    return words_of(count_chunks(texts), normalizer=normalizer, pre_tokenizer=pre_tokenizer)


def count_chunks(texts: Iterable[str]) -> Counter[str]:
    """Count the chunks of the texts; counts of several parts of a text may be added."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(CHUNK.findall(text))
    return chunks


def words_of(chunks: Mapping[str, int], *, normalizer: Normalizer, pre_tokenizer: PreTokenizer) -> Counter[str]:
    """Count the words, but for those too long to be split, in chunks and their counts."""
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(chunk)):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def learn_pieces(
    counts: Mapping[str, int], *, size: int, min_frequency: int = 2, limit_alphabet: int | None = None
) -> list[str]:
    """Learn at most `size` pieces from words and their counts: the sorted alphabet, then what is merged, as it comes.

    The alphabet is each character as it begins ("a") or continues ("##a") a word: the most frequent, if there are more
    than `limit_alphabet` or `size`, and a warning tells what is left out. Pairs seen less often than `min_frequency`
    are not merged.
    """
    words = [Word(_split_characters(word), count) for word, count in counts.items()]
    alphabet = _alphabet(words, size if limit_alphabet is None else min(size, limit_alphabet))
    pieces = dict.fromkeys(sorted(alphabet))  # a set that keeps its order: two merges may give the same piece
    merges = _merges([word for word in words if alphabet.issuperset(word.pieces)], min_frequency)
    while len(pieces) < size and (piece := next(merges, None)):
        pieces[piece] = None
    return list(pieces)


class Word(NamedTuple):
    """A word in its present pieces, which shrink with each merge, and how often it was seen."""

    pieces: list[str]
    frequency: int


Pair = tuple[str, str]


class PairIndex:
    """Which pairs of neighbouring pieces are there, how often, and in which words?"""

    def __init__(self, words: Iterable[Word]):
        self.counts: defaultdict[Pair, int] = defaultdict(int)
        self.places: defaultdict[Pair, list[Word]] = defaultdict(list)  # a word may be there twice, or without the pair
        for word in words:
            for pair in pairwise(word.pieces):
                self._add(pair, word)
        self._heap = [(-count, pair) for pair, count in self.counts.items()]
        heapify(self._heap)

    def most_frequent(self) -> Pair | None:
        """Take the pair with the highest count; of equal ones, the first by its strings. None when no pair is left.

        The heap knows of each count that rose. One that fell is found out here, and goes back with what is left of it.
        """
        while self._heap:
            count, pair = heappop(self._heap)
            if -count == self.counts[pair]:
                return pair
            if self.counts[pair] > 0:
                heappush(self._heap, (-self.counts[pair], pair))
        return None

    def merge(self, pair: Pair, piece: str) -> None:
        """Put `piece` for the pair in each word that has it, from left to right."""
        risen: set[Pair] = set()
        for word in self.places.pop(pair):
            self._merge_in(word, pair, piece, risen)
        del self.counts[pair]
        for new in risen:
            heappush(self._heap, (-self.counts[new], new))

    def _merge_in(self, word: Word, pair: Pair, piece: str, risen: set[Pair]) -> None:
        (first, second), pieces, at = pair, word.pieces, -1
        left = pieces.count(first)  # a list counts and finds faster than a loop would
        while left:
            at, left = pieces.index(first, at + 1), left - 1
            if at + 1 < len(pieces) and pieces[at + 1] == second:
                pieces[at : at + 2] = [piece]
                left -= first == second
                if at > 0:
                    risen.add(self._replace((pieces[at - 1], first), (pieces[at - 1], piece), word))
                if at + 1 < len(pieces):
                    risen.add(self._replace((second, pieces[at + 1]), (piece, pieces[at + 1]), word))

    def _replace(self, old: Pair, new: Pair, word: Word) -> Pair:
        self.counts[old] -= word.frequency
        self._add(new, word)
        return new

    def _add(self, pair: Pair, word: Word) -> None:
        self.counts[pair] += word.frequency
        self.places[pair].append(word)


def _merges(words: Iterable[Word], min_frequency: int) -> Iterator[str]:
    """Yield the piece of each merge, the most frequent pair first."""
    pairs = PairIndex(words)
    while (pair := pairs.most_frequent()) and pairs.counts[pair] >= min_frequency:
        piece = sys.intern(pair[0] + pair[1].removeprefix(CONTINUATION))
        yield piece
        pairs.merge(pair, piece)


def _split_characters(word: str) -> list[str]:
    return [sys.intern(word[0]), *(sys.intern(CONTINUATION + character) for character in word[1:])]


def _alphabet(words: Iterable[Word], limit: int) -> set[str]:
    """The most frequent characters; tells how many fall to [UNK], and how many words with them."""
    counts: Counter[str] = Counter()
    for word in words:
        for piece in word.pieces:
            counts[piece] += word.frequency
    kept = set(sorted(counts, key=lambda piece: (-counts[piece], piece))[:limit])
    if len(kept) < len(counts):
        lost = sum(word.frequency for word in words if not kept.issuperset(word.pieces))
        warnings.warn(
            f"the vocabulary has room for {len(kept)} of {len(counts)} characters: {len(counts) - len(kept)} fall to "
            f"[UNK], and with them {lost / sum(word.frequency for word in words):.2%} of the words",
            stacklevel=5,  # whoever called `train_tokenizer`
        )
    return kept
