"""The two readings of the documents: one to hash them while their words are counted, one to encode them."""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from minibert.data.sentences import split_sentences
from minibert.data.sources import Document
from minibert.data.splits import DROPPED, has_words, hash_document
from minibert.data.token_store import TokenWriter
from minibert.errors import UserError

ENCODED_AT_ONCE = 4096
"""Sentences in a call of the tokenizer, which spreads them over the cores."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first reading leaves: a hash of each document, and whether it has words; 9 bytes a document."""

    hash_codes: "array[int]" = field(default_factory=lambda: array("Q"))
    word_flags: bytearray = field(default_factory=bytearray)

    def texts(self, documents: Iterable[Document]) -> Iterator[str]:
        """Pass the texts on, and note each. At the end raises `UserError` where there are not two different ones."""
        for document in documents:
            self.hash_codes.append(hash_document(document.text))
            self.word_flags.append(has_words(document.text))
            yield document.text
        self._check()

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """[documents]"""
        return np.array(self.hash_codes, dtype=np.uint64)

    @property
    def with_words(self) -> npt.NDArray[np.bool_]:
        """[documents]"""
        return np.array(self.word_flags, dtype=np.bool_)

    def _check(self) -> None:
        different = len(np.unique(self.hashes[self.with_words]))
        if different == 0:
            raise UserError(f"the sources hold no words ({len(self.hash_codes)} documents); expected text")
        if different == 1:
            raise UserError(
                "the sources hold one document only (not counting equal ones); expected two at least, as a random next "
                "sentence comes from another document (in a text file a blank line ends a document)"
            )


@dataclass(frozen=True)
class Dropped:
    """What the second reading left out."""

    duplicate_documents: int
    documents_without_tokens: int
    sentences_without_tokens: int


def encode_documents(
    documents: Iterable[Document],
    survey: Survey,
    parts: npt.NDArray[np.int8],
    *,
    tokenizer: Tokenizer,
    language: str,
    writers: Sequence[TokenWriter],
) -> Dropped:
    """Write the sentences of each document as token ids to the writer of its part; order is kept.

    Raises `UserError` where the documents are not those of the survey any more.
    """
    kept = _kept(documents, survey, parts)
    sentences = ((number, sentence) for number, text in kept for sentence in split_sentences(text, language))
    written = empty = 0
    for number, encoded in itertools.groupby(_encoded(sentences, tokenizer), key=itemgetter(0)):
        ids = [ids for _, ids in encoded]
        filled = [sentence for sentence in ids if sentence]
        empty += len(ids) - len(filled)
        if filled:
            writers[parts[number]].add(filled)
            written += 1
    duplicates = int(np.count_nonzero(parts == DROPPED))
    return Dropped(duplicates, len(parts) - duplicates - written, empty)


def _kept(documents: Iterable[Document], survey: Survey, parts: npt.NDArray[np.int8]) -> Iterator[tuple[int, str]]:
    number = -1
    for number, (text, origin) in enumerate(documents):
        if number >= len(parts) or hash_document(text) != survey.hash_codes[number]:
            raise UserError(f"{origin}: the text changed while the corpus was made; try again when it is complete")
        if parts[number] != DROPPED:
            yield number, text
    if number + 1 < len(parts):
        raise UserError(f"the sources lost {len(parts) - number - 1} documents while the corpus was made; try again")


def _encoded(sentences: Iterator[tuple[int, str]], tokenizer: Tokenizer) -> Iterator[tuple[int, list[int]]]:
    while batch := list(itertools.islice(sentences, ENCODED_AT_ONCE)):
        encodings: list[Any] = tokenizer.encode_batch_fast([text for _, text in batch], add_special_tokens=False)
        for (number, _), encoding in zip(batch, encodings, strict=True):
            yield number, encoding.ids
