"""Writes token ids as `token_store` reads them, as a stream, and goes on where a killed writer was.

Rows of Arrow are cut into record batches by their number of tokens alone, so that equal documents give equal bytes,
whatever portions they come in. What is in the files is whole record batches; a rest waits in memory.
"""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibert.data.token_store import Booleans, Ids, token_files

BATCH_TOKENS = 1 << 20
"""A record batch ends with the document that fills it to this many tokens."""

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_HEADER = 128
"""Bytes before the numbers of an .npy file."""

Counts = npt.NDArray[np.integer[Any]]
IdType = np.dtype[Any]


class Written(NamedTuple):
    """How much is in the files: from these numbers a writer goes on."""

    arrow_bytes: int = 0
    documents: int = 0
    sentences: int = 0
    tokens: int = 0


class Documents(NamedTuple):
    """A portion of documents, none of them empty."""

    tokens: Ids
    """[tokens] of all sentences of all documents."""
    token_counts: Counts
    """[sentences]"""
    sentence_counts: Counts
    """[documents]"""
    words: Booleans | None = None
    """[tokens], which continue a word; None where words are not marked."""

    def lengths(self) -> npt.NDArray[np.int64]:
        """[documents], tokens of each."""
        return _sums(self.token_counts, self.sentence_counts)


class TokenWriter:
    """Writes the files of one split; a context manager.

    Args:
        directory, split: where, and under which name.
        vocab_size: tells how many bytes an id takes.
        words: whether words are marked.
        at: what a writer before had written; all that its files hold beyond is cut off.
    """

    def __init__(
        self, directory: Path, split: str, *, vocab_size: int, words: bool = False, at: Written | None = None
    ) -> None:
        self._type: IdType = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
        self._has_words = words
        self._files = [_opened(path) for path in token_files(directory, split, words=words)]
        self._pending: list[Documents] = []
        self._waiting = 0  # tokens that are pending
        self.written = at or Written()
        if at is None:
            self._begin()
        for file, size in zip(self._files, self._sizes(), strict=True):
            file.truncate(size)
            file.seek(size)

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """Append one document: the ids of its sentences."""
        tokens = np.array([id_ for ids in sentences for id_ in ids], self._type)
        self.extend(Documents(tokens, np.array([len(ids) for ids in sentences]), np.array([len(sentences)])))

    def extend(self, documents: Documents) -> None:
        """Append documents; those that fill record batches are written to the files."""
        if len(documents.tokens):
            self._pending.append(documents)
            self._waiting += len(documents.tokens)
        if self._waiting >= BATCH_TOKENS:
            self._write(all_of_it=False)

    def sync(self) -> None:
        """Have the system bring what is written to the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write(all_of_it=True)
                self._end()
                self.sync()
        finally:
            for file in self._files:
                file.close()

    def _begin(self) -> None:
        arrow, *numbers = self._files
        for file in (arrow, *numbers):
            file.truncate(0)
        self.written = Written(arrow_bytes=arrow.write(_schema(self._type).serialize()))
        for file in numbers[:2]:
            file.write(bytes(_HEADER) + np.zeros(1, np.int64).tobytes())

    def _end(self) -> None:
        arrow, *numbers = self._files
        arrow.write(_END_OF_STREAM)
        kinds = [("<i8", self.written.documents + 1), ("<i8", self.written.sentences + 1)]
        kinds += [("|u1", -(-self.written.tokens // 8))] * self._has_words
        for file, (kind, count) in zip(numbers, kinds, strict=True):
            file.seek(0)
            file.write(_header(kind, count))

    def _sizes(self) -> list[int]:
        at = self.written
        sizes = [at.arrow_bytes, _HEADER + 8 * (at.documents + 1), _HEADER + 8 * (at.sentences + 1)]
        return sizes + [_HEADER + -(-at.tokens // 8)] * self._has_words

    def _write(self, *, all_of_it: bool) -> None:
        """Write all record batches that are full, and at the end the one that is not."""
        if not self._pending:
            return
        rest = _joined(self._pending)
        ends = np.cumsum(rest.lengths())
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + BATCH_TOKENS)) + 1
            if last > len(ends) and not all_of_it:
                break
            self._write_batch(take(rest, first, min(last, len(ends))))
            first = min(last, len(ends))
        self._pending = [_copy(take(rest, first, len(ends)))] if first < len(ends) else []
        self._waiting = int(ends[-1] - ends[first - 1]) if first else int(ends[-1])

    def _write_batch(self, documents: Documents) -> None:
        arrow, document_file, sentence_file, *word_file = self._files
        at = self.written
        size = arrow.write(_batch(documents, self._type).serialize())
        document_file.write((at.sentences + np.cumsum(documents.sentence_counts, dtype=np.int64)).tobytes())
        sentence_file.write((at.tokens + np.cumsum(documents.token_counts, dtype=np.int64)).tobytes())
        for file in word_file:
            assert documents.words is not None
            _append_bits(file, documents.words, at.tokens)
        self.written = Written(
            at.arrow_bytes + size,
            at.documents + len(documents.sentence_counts),
            at.sentences + len(documents.token_counts),
            at.tokens + len(documents.tokens),
        )


def take(documents: Documents, first: int, last: int) -> Documents:
    """The documents `first` to `last`."""
    tokens, token_counts, sentence_counts, words = documents
    begin, end = int(sentence_counts[:first].sum()), int(sentence_counts[:last].sum())
    token_begin, token_end = int(token_counts[:begin].sum()), int(token_counts[:end].sum())
    return Documents(
        tokens[token_begin:token_end],
        token_counts[begin:end],
        sentence_counts[first:last],
        None if words is None else words[token_begin:token_end],
    )


def _opened(path: Path) -> BinaryIO:
    path.touch()
    return path.open("r+b")


def _schema(type_: IdType) -> pa.Schema:
    return pa.schema([("sentences", pa.list_(pa.list_(pa.from_numpy_dtype(type_))))])


def _batch(documents: Documents, type_: IdType) -> pa.RecordBatch:
    sentences = pa.ListArray.from_arrays(_offsets(documents.token_counts), pa.array(documents.tokens.astype(type_)))
    rows = pa.ListArray.from_arrays(_offsets(documents.sentence_counts), sentences)
    return pa.record_batch([rows], schema=_schema(type_))


def _offsets(counts: Counts) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _append_bits(file: BinaryIO, bits: Booleans, before: int) -> None:
    """Write bits behind `before` others; the last of those may share a byte with the first of these."""
    file.seek(_HEADER + before // 8)
    shared = np.frombuffer(file.read(1), np.uint8) if before % 8 else np.empty(0, np.uint8)
    earlier = np.unpackbits(shared, bitorder="little")[: before % 8]
    file.seek(_HEADER + before // 8)
    file.write(np.packbits(np.concatenate((earlier, bits)), bitorder="little").tobytes())


def _header(kind: str, count: int) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": (count,)})
    assert header.tell() == _HEADER
    return header.getvalue()


def _sums(counts: Counts, groups: Counts) -> npt.NDArray[np.int64]:
    """The sum of each group of neighbours: `groups` says how many belong together."""
    ends = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))[np.cumsum(groups)]
    return np.diff(ends, prepend=0)


def _joined(parts: list[Documents]) -> Documents:
    if len(parts) == 1:
        return parts[0]
    tokens, token_counts, sentence_counts = (np.concatenate([part[field] for part in parts]) for field in range(3))  # type: ignore[misc]
    words = None if parts[0].words is None else np.concatenate([part.words for part in parts])  # type: ignore[misc]
    return Documents(tokens, token_counts, sentence_counts, words)


def _copy(documents: Documents) -> Documents:
    """So that a small rest does not keep all of a large array alive."""
    return Documents(*(None if array is None else array.copy() for array in documents))  # type: ignore[arg-type]
