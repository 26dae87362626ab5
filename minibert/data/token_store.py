"""How do token ids lie on disk? As a flat stream of tokens, and where sentences and documents begin in it.

    train.arrow             a row is a document: list<list<uint16>>  (int32 where the vocabulary needs it), an Arrow IPC
                            stream that `datasets.Dataset.from_file` reads as well
    train.documents.npy     int64 [documents + 1]: sentences `[d]` to `[d + 1]` are document d
    train.sentences.npy     int64 [sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s
    train.words.npy         uint8, only where words are marked: bit i, the lowest of a byte first, says that token i
                            continues a word

All are mapped into memory: to open them reads nothing but their headers, whatever their size.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibert.errors import UserError

Ids = npt.NDArray[np.integer[Any]]
Offsets = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The documents of one split as a flat stream of tokens, and where sentences and documents begin in it."""

    document_offsets: Offsets
    """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""
    sentence_offsets: Offsets
    """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""
    word_bits: npt.NDArray[np.uint8] | None
    """Bit i: token i continues a word. None where words are not marked."""
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

    def continues(self, begin: int, end: int) -> Booleans | None:
        """[end - begin], which of these tokens continue a word; None where words are not marked."""
        if self.word_bits is None:
            return None
        first = begin // 8
        bits = np.unpackbits(self.word_bits[first : -(-end // 8)], bitorder="little")
        return bits[begin - 8 * first : end - 8 * first].view(np.bool_)

    def _across_pieces(self, index: int, begin: int, end: int) -> Ids:
        last = bisect_right(self.starts, end - 1)
        ranges = zip(self.starts[index:last], self.pieces[index:last], strict=True)
        return np.concatenate([piece[max(begin - start, 0) : end - start] for start, piece in ranges])


def token_files(directory: Path, split: str, *, words: bool) -> list[Path]:
    """The files of a split: token ids, offsets of documents and of sentences, and, where they are marked, words."""
    endings = ("arrow", "documents.npy", "sentences.npy", *(["words.npy"] if words else []))
    return [directory / f"{split}.{ending}" for ending in endings]


def open_tokens(directory: Path, split: str) -> TokenStore:
    """Map the files of a split into memory. Raises `UserError` where one is not what it should be, or cut off."""
    arrow, documents, sentences, words = token_files(directory, split, words=True)
    pieces = list(_record_batches(arrow, pa.memory_map))
    return TokenStore(
        document_offsets=_map(documents),
        sentence_offsets=_map(sentences),
        word_bits=_map(words) if words.exists() else None,
        pieces=tuple(pieces) or (np.empty(0, np.uint16),),
        starts=tuple(int(start) for start in np.cumsum([0, *map(len, pieces[:-1])])),
    )


def read_tokens(directory: Path, split: str) -> Iterator[Ids]:
    """The token stream by record batches, read instead of mapped: memory holds one of them and no page of the file."""
    return _record_batches(directory / f"{split}.arrow", pa.OSFile)


def _record_batches(path: Path, opened: Any) -> Iterator[Ids]:
    try:
        with opened(str(path)) as file:
            for batch in pa.ipc.open_stream(file):
                yield batch.column("sentences").values.values.to_numpy()
    except (OSError, KeyError, AttributeError, pa.ArrowException) as error:
        raise UserError(f"{path} is not a whole Arrow file of token ids: {error}") from error


def _map(path: Path) -> npt.NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a whole file of numbers: {error}") from error
