"""Which token ids is a text? Each different run of characters is asked of the tokenizer once, then looked up.

"He said no. No!"       the sentences, each of which is encoded by itself
He said no . | No !     runs that end where BERT ends a word for certain
0  1    2  3 | 4  5     numbers of runs; a run that was not seen before gets the next one
[27 115 84 17] [84 8]   the ids of each run, joined: five times faster than to encode the sentences
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from minibert.data.sentences import split_sentences
from minibert.data.token_store import Booleans
from minibert.data.tokenizer import vocabulary
from minibert.data.wordpiece import CHUNK

LARGEST_TABLE = 400_000
"""Runs that are kept, about 80 MB; where there are more, all are forgotten."""

CHARACTERS_AT_ONCE = 1 << 18

Integers = npt.NDArray[np.int32]


class Encoded(NamedTuple):
    """Documents as token ids; what has no tokens is left out and counted."""

    tokens: Integers
    """[tokens] of all sentences of all documents."""
    token_counts: Integers
    """[sentences], none of them 0."""
    sentence_counts: Integers
    """[documents], 0 where a document has no tokens."""
    empty_counts: Integers
    """[documents], sentences without tokens."""
    words: Booleans | None
    """[tokens], which continue a word; None where words are not marked."""


class Encoder:
    """Splits documents into sentences and encodes them.

    Args:
        tokenizer: the tokenizer.
        language: code of the language, for the ends of sentences.
        mark_words: whether the words of Chinese text are marked.
    """

    def __init__(self, tokenizer: Tokenizer, *, language: str, mark_words: bool = False) -> None:
        self._tokenizer, self._language, self._mark_words = tokenizer, language, mark_words
        self.vocab_size = vocabulary(tokenizer).size
        self._table = RunTable(tokenizer) if ends_words_at_runs(tokenizer) and not mark_words else None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The documents in order."""
        parts = [self._encode(some) for some in _portions(texts)]
        words = [part.words for part in parts if part.words is not None]
        tokens, token_counts, sentence_counts, empty_counts = (
            np.concatenate([part[field] for part in parts])  # type: ignore[misc]
            for field in range(4)
        )
        return Encoded(tokens, token_counts, sentence_counts, empty_counts, np.concatenate(words) if words else None)

    def _encode(self, texts: Sequence[str]) -> Encoded:
        documents = [list(split_sentences(text, self._language)) for text in texts]
        sentences = [sentence for document in documents for sentence in document]
        tokens, counts, words = self._tokens(sentences)
        sizes = np.array([len(document) for document in documents], np.int32)
        document = np.repeat(np.arange(len(texts)), sizes)
        filled = np.bincount(document[counts > 0], minlength=len(texts)).astype(np.int32)
        return Encoded(tokens, counts[counts > 0], filled, sizes - filled, words)

    def _tokens(self, sentences: list[str]) -> tuple[Integers, Integers, Booleans | None]:
        if self._table:
            return *self._table.encode(sentences), None
        if not self._mark_words:
            ids = [e.ids for e in self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
            return *_joined(ids), None
        from minibert.data.chinese import mark_words  # needs an extra

        encodings = self._tokenizer.encode_batch(sentences, add_special_tokens=False)
        marks = mark_words(list(zip(sentences, encodings, strict=True)))
        return *_joined([encoding.ids for encoding in encodings]), marks


class RunTable:
    """The ids of each run of characters that was seen, by its number; number 0 is the line feed between sentences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forget()

    def encode(self, sentences: Sequence[str]) -> tuple[Integers, Integers]:
        """The ids of all sentences, none of which holds a line feed, and the number of ids in each."""
        if len(self._numbers) > LARGEST_TABLE:
            self._forget()
        runs = _RUN.findall("\n".join(sentences)) if sentences else []
        numbers = np.fromiter(map(self._numbers.__getitem__, runs), np.int32, len(runs))
        self._ask()
        begins = np.frombuffer(self._begins, np.int64)
        first, counts = begins[numbers], np.diff(begins)[numbers]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
        ids = np.frombuffer(self._ids, np.int32)[places]
        line_ends = np.append(ends[numbers == _Numbers.LINE_FEED], len(ids))[: len(sentences)]
        return ids, np.diff(line_ends, prepend=0).astype(np.int32)

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._begins, self._ids = array("q", [0, 0]), array("i")

    def _ask(self) -> None:
        """Learn the ids of the runs that were numbered last."""
        new = list(self._numbers.new)
        self._numbers.new.clear()
        for encoding in self._tokenizer.encode_batch_fast(new, add_special_tokens=False):
            self._ids.extend(encoding.ids)
            self._begins.append(len(self._ids))


def ends_words_at_runs(tokenizer: Tokenizer) -> bool:
    """Whether a text is encoded as its runs are, one by one, which follows from the rules of BERT tokenizers."""
    return (
        isinstance(tokenizer.normalizer, normalizers.BertNormalizer)
        and tokenizer.normalizer.handle_chinese_chars
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(tokenizer.model, models.WordPiece)
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


class _Numbers(dict[str, int]):
    """Numbers what is looked up for the first time, and remembers it as new."""

    LINE_FEED = 0

    def __init__(self) -> None:
        super().__init__({"\n": self.LINE_FEED})
        self.new: list[str] = []

    def __missing__(self, run: str) -> int:
        self.new.append(run)
        number = self[run] = len(self)
        return number


_RUN = re.compile(f"{CHUNK.pattern}|\n")


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """A few documents at a time, so that their sentences and runs take little memory; an empty portion first."""
    first = size = 0
    for last, text in enumerate(texts):
        size += len(text)
        if size >= CHARACTERS_AT_ONCE:
            yield texts[first : last + 1]
            first, size = last + 1, 0
    yield texts[first:]


def _joined(ids: list[list[int]]) -> tuple[Integers, Integers]:
    flat = np.fromiter((id_ for sentence in ids for id_ in sentence), np.int32)
    return flat, np.array([len(sentence) for sentence in ids], np.int32)
