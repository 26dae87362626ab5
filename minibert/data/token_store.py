"""How do token ids lie on disk? A row of Arrow is a document: a list of sentences, each a list of ids, memory-mapped.

    sentences: list<list<uint16>>   (int32 where the vocabulary needs it), an Arrow IPC stream

`datasets.Dataset.from_file` reads it as well. Rows are cut into record batches by their number of tokens alone, so
that equal documents give equal bytes.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibert.errors import UserError

Ids = npt.NDArray[np.integer[Any]]
Offsets = npt.NDArray[np.int64]

BATCH_TOKENS = 1 << 20
"""A record batch ends with the document that fills it to this many tokens."""


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The documents of one file as a flat stream of tokens, and where sentences and documents begin in it."""

    document_offsets: Offsets
    """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""
    sentence_offsets: Offsets
    """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""
    pieces: tuple[Ids, ...]
    """The token stream, cut at record batches: views of the mapped file."""
    starts: tuple[int, ...]
    """Position of each piece in the stream."""

    def tokens(self, begin: int, end: int) -> Ids:
        """The ids `begin` to `end` of the stream: a view, or a copy where the range spans record batches."""
        index = bisect_right(self.starts, begin) - 1
        start, piece = self.starts[index], self.pieces[index]
        if end - start <= len(piece):
            return piece[begin - start : end - start]
        return self._across_pieces(index, begin, end)

    def _across_pieces(self, index: int, begin: int, end: int) -> Ids:
        last = bisect_right(self.starts, end - 1)
        ranges = zip(self.starts[index:last], self.pieces[index:last], strict=True)
        return np.concatenate([piece[max(begin - start, 0) : end - start] for start, piece in ranges])


def open_tokens(path: Path) -> TokenStore:
    """Map the file into memory; only the offsets are read. Raises `UserError` where it is no such file, or cut off."""
    try:
        batches = list(pa.ipc.open_stream(pa.memory_map(str(path))))
        columns = [batch.column("sentences") for batch in batches]
        sentences = [column.values for column in columns]
        pieces = [sentence.values.to_numpy() for sentence in sentences]
    except (OSError, KeyError, AttributeError, pa.ArrowException) as error:
        raise UserError(f"{path} is not a whole Arrow file of token ids: {error}") from error
    return TokenStore(
        document_offsets=_joined_offsets(columns),
        sentence_offsets=_joined_offsets(sentences),
        pieces=tuple(pieces) or (np.empty(0, np.uint16),),
        starts=tuple(int(start) for start in np.cumsum([0, *map(len, pieces[:-1])])),
    )


class TokenWriter:
    """Writes a file of token ids, document by document; a context manager."""

    def __init__(self, path: Path, *, vocab_size: int) -> None:
        self._code = "H" if vocab_size <= 1 << 16 else "i"
        schema = pa.schema([("sentences", pa.list_(pa.list_(pa.from_numpy_dtype(self._code))))])
        self._file = pa.OSFile(str(path), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        self._begin_batch()

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """Append one document: the ids of its sentences."""
        self._sentence_counts.append(len(sentences))
        for ids in sentences:
            self._token_counts.append(len(ids))
            self._tokens.extend(ids)
        if len(self._tokens) >= BATCH_TOKENS:
            self._end_batch()

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._sentence_counts:
                self._end_batch()
            self._stream.close()
        finally:
            self._file.close()

    def _begin_batch(self) -> None:
        self._sentence_counts: list[int] = []
        self._token_counts: list[int] = []
        self._tokens = array(self._code)

    def _end_batch(self) -> None:
        tokens = pa.array(np.frombuffer(self._tokens, self._code))
        sentences = pa.ListArray.from_arrays(_offsets(self._token_counts), tokens)
        documents = pa.ListArray.from_arrays(_offsets(self._sentence_counts), sentences)
        self._stream.write_batch(pa.record_batch([documents], names=["sentences"]))
        self._begin_batch()


def _offsets(counts: Sequence[int]) -> pa.Array:
    return pa.array(np.cumsum([0, *counts]).astype(np.int32))


def _joined_offsets(columns: Sequence[pa.ListArray]) -> Offsets:
    """Offsets that begin at 0 in each record batch, as positions in the whole file."""
    joined, total = [np.zeros(1, np.int64)], 0
    for column in columns:
        joined.append(column.offsets.to_numpy()[1:] + np.int64(total))
        total = int(joined[-1][-1])
    return np.concatenate(joined)
