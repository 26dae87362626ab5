"""How long does it take from opening a corpus to the batch of a far step? No batch before it is made or walked over."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from parts.table import Row

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.blocks import BLOCK, SentenceStore
from minibert.data.corpus import Corpus
from minibert.data.random import generator
from minibert.data.tokenizer import Vocabulary

EPOCHS = 1_000
_CHUNK = 1 << 20  # sentences that are written at once


def of_corpus(directory: Path, vocabulary: Vocabulary) -> Row:
    """Seconds at the first step, and after a thousand epochs."""

    def opened() -> SentenceStore:
        return Corpus.open(directory, "train")

    blocks = max(1, round((len(opened().sentence_offsets) - 1) / BLOCK))
    near, far = ([_seconds(opened, vocabulary, Cursor(b, 0)) for _ in range(5)] for b in (0, EPOCHS * blocks))
    return Row(
        f"seconds from opening to the first batch; to that after {EPOCHS:,} epochs",
        f"{median(near):.2f}; {median(far):.2f}",
    )


def of_sentences(sentences: int, vocabulary: Vocabulary, folder: Path) -> Row:
    """The same for a corpus of so many sentences; its offsets are files in a folder, removed at the end."""
    files = folder / "documents.i64", folder / "sentences.i64"
    try:
        _write_offsets(sentences, *files)
        unread, read = (_seconds(lambda: Endless.open(*files), vocabulary, _far(sentences)) for _ in range(2))
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    return Row(f"the same, {sentences:,} sentences: files not in memory; in memory", f"{unread:.2f}; {read:.2f}")


@dataclass(frozen=True)
class Endless:
    """Sentences whose offsets lie in files; their tokens are always the same million."""

    document_offsets: npt.NDArray[np.int64]
    sentence_offsets: npt.NDArray[np.int64]
    stream: npt.NDArray[np.uint16]

    @staticmethod
    def open(documents: Path, sentences: Path) -> "Endless":
        """Map the files."""
        document_offsets, sentence_offsets = (
            np.memmap(file, np.int64, "r").view(np.ndarray) for file in (documents, sentences)
        )
        return Endless(document_offsets, sentence_offsets, generator(0).integers(5, 4_000, 1 << 20).astype(np.uint16))

    def tokens(self, begin: int, end: int, /) -> npt.NDArray[Any]:
        """Any range of the stream."""
        return self.stream[np.arange(begin, end) % len(self.stream)]


def _seconds(opened: Callable[[], SentenceStore], vocabulary: Vocabulary, cursor: Cursor) -> float:
    start = time.perf_counter()
    PretrainingBatches(opened(), vocabulary, seed=1).micro_batches(_request(cursor))
    return time.perf_counter() - start


def _request(cursor: Cursor) -> Request:
    return Request(0, cursor, 256, 128, 0.15)


def _far(sentences: int) -> Cursor:
    return Cursor(EPOCHS * max(1, round(sentences / BLOCK)), 1_009)


def _write_offsets(sentences: int, document_file: Path, sentence_file: Path) -> None:
    """Documents of 1 to 39 sentences of 3 to 47 tokens, and then no page of the files is in memory."""
    rng, tokens, documents = generator(0), 0, 0
    with document_file.open("wb") as wide, sentence_file.open("wb") as narrow:
        for file in (wide, narrow):
            file.write(np.zeros(1, np.int64).tobytes())
        for begin in range(0, sentences, _CHUNK):
            ends = tokens + np.cumsum(rng.integers(3, 48, min(_CHUNK, sentences - begin)))
            tokens = int(ends[-1])
            narrow.write(ends.tobytes())
        while documents < sentences:
            ends = np.minimum(documents + np.cumsum(rng.integers(1, 40, _CHUNK)), sentences)
            documents = int(ends[-1])
            wide.write(np.unique(ends).tobytes())
        for file in (wide, narrow):
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
