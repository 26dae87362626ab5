"""How do pieces become a corpus? The part of each document is decided, then its tokens go to the files of that part.

    pieces/0  pieces/1  pieces/2 ...       all hashes -> parts -> validation files -> their shingles
        |
    corpus/train.*                         near copies are left out; a piece is removed when all of it is on disk

So the tokens take little more than their own space, and a merge that was killed goes on where it was: merge.json tells.
"""

import io
import json
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.data.encoding import Encoded
from minibert.data.folding import Folding
from minibert.data.near_copies import ShingleTable
from minibert.data.pieces import piece_path, read_hashes, read_piece
from minibert.data.progress import Track
from minibert.data.publish import sync
from minibert.data.splits import DROPPED, TRAIN, VALIDATION, check_different, count_different, split_documents
from minibert.data.token_store import Booleans, open_tokens
from minibert.data.token_writer import Documents, TokenWriter, Written, take
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.data.work_folder import WorkFolder
from minibert.data.workers import in_order
from minibert.files import write_whole

MOST_BYTES_KEPT = 1 << 26
"""Pieces are removed when so many bytes of them are on disk twice, or a sixteenth of them all."""


@dataclass(frozen=True)
class Dropped:
    """What did not come into the corpus."""

    duplicate_documents: int = 0
    near_copies_of_validation: int = 0
    """Documents of the train part that stand in the validation part too, but for a few words."""
    documents_without_tokens: int = 0
    sentences_without_tokens: int = 0

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


class Parts(NamedTuple):
    """Where each document of the pieces belongs."""

    parts: npt.NDArray[np.int8]
    """[documents]"""
    ends: npt.NDArray[np.int64]
    """[pieces + 1]: documents `[p]` to `[p + 1]` are those of piece p."""

    def of_piece(self, number: int) -> npt.NDArray[np.int8]:
        """The parts of the documents of one piece."""
        return self.parts[self.ends[number] : self.ends[number + 1]]


def decide_parts(folder: WorkFolder, pieces: int, *, share: float, most: int, deduplicate: bool) -> None:
    """Decide and write the part of each document, from the hashes of all pieces.

    Raises `UserError` where there are not two different documents.
    """
    found = [read_hashes(piece_path(folder.pieces, number)) for number in range(pieces)]
    hashes = np.concatenate([np.empty(0, np.uint64), *(some for some, _ in found)])
    with_words = np.concatenate([np.empty(0, np.bool_), *(some for _, some in found)])
    ends = np.cumsum([0, *(len(some) for some, _ in found)])
    del found
    check_different(count_different(hashes[with_words]), len(hashes))
    parts = split_documents(hashes, with_words, share=share, most=most, deduplicate=deduplicate)
    content = io.BytesIO()
    np.savez(content, parts=parts, ends=ends)
    write_whole(folder.parts, content.getvalue())


def merge_pieces(folder: WorkFolder, *, words: bool, processes: int, track: Track) -> Dropped:
    """Write the files of both parts from the pieces, and remove these; what was dropped.

    Goes on where a merge before was killed. `words` says whether words are marked.
    """
    with np.load(folder.parts, allow_pickle=False) as file:
        parts = Parts(file["parts"], file["ends"])
    size = vocabulary(load_tokenizer(folder.tokenizer)).size
    journal = _read_journal(folder)
    if not journal:
        folder.corpus.mkdir(exist_ok=True)
        with TokenWriter(folder.corpus, "validation", vocab_size=size, words=words) as writer:
            _write_validation(writer, folder, parts)
    with TokenWriter(
        folder.corpus, "train", vocab_size=size, words=words, at=journal.written if journal else None
    ) as writer:
        merge = _Merge(folder, writer, journal)
        tasks = [_Task(number, parts.of_piece(number)) for number in range(merge.journal.piece, len(parts.ends) - 1)]
        with closing(
            in_order(partial(_chooser, folder), track(tasks, "merging", len(tasks)), processes=processes)
        ) as all_chosen:
            for task, chosen in zip(tasks, all_chosen, strict=True):
                merge.add(task.number, chosen)
    merge.end()
    return merge.journal.dropped


class _Task(NamedTuple):
    number: int
    parts: npt.NDArray[np.int8]


class _Chosen(NamedTuple):
    """What of a piece goes to the train part, and what was dropped."""

    documents: Documents
    dropped: Dropped


class _Journal(NamedTuple):
    """How far a merge is: all pieces before `piece` are written, and of this one perhaps some documents."""

    piece: int
    documents_before: int
    """Of the train part, in the pieces before."""
    written: Written
    dropped: Dropped
    """From the pieces before."""


class _Waiting(NamedTuple):
    """A piece that is not removed yet."""

    number: int
    last_document: int
    dropped: Dropped
    size: int


class _Merge:
    """Appends pieces to the train part, and removes those that are on disk."""

    def __init__(self, folder: WorkFolder, writer: TokenWriter, journal: _Journal | None) -> None:
        self._folder, self._writer = folder, writer
        self.journal = journal or _Journal(0, 0, writer.written, Dropped())
        self._documents = self.journal.documents_before
        self._waiting: deque[_Waiting] = deque()
        self._most = min(sum(path.stat().st_size for path in folder.pieces.iterdir()) // 16, MOST_BYTES_KEPT)
        sync(folder.corpus)
        writer.sync()
        self._save()

    def add(self, number: int, chosen: _Chosen) -> None:
        """Append the documents of the next piece, but for those that a merge before has written."""
        count = len(chosen.documents.sentence_counts)
        there = min(max(self.journal.written.documents - self._documents, 0), count)
        self._writer.extend(take(chosen.documents, there, count))
        self._documents += count
        size = piece_path(self._folder.pieces, number).stat().st_size
        self._waiting.append(_Waiting(number, self._documents, chosen.dropped, size))
        self._remove_written()

    def end(self) -> None:
        """Note that all is written, once the writer is closed."""
        while self._waiting:
            self._pass(self._waiting.popleft())
        self.journal = self.journal._replace(written=self._writer.written)
        self._save()

    def _remove_written(self) -> None:
        done = [piece for piece in self._waiting if piece.last_document <= self._writer.written.documents]
        if done and sum(piece.size for piece in done) >= self._most:
            for _ in done:
                self._pass(self._waiting.popleft())
            self._writer.sync()
            self.journal = self.journal._replace(written=self._writer.written)
            self._save()

    def _pass(self, piece: _Waiting) -> None:
        dropped = self.journal.dropped + piece.dropped
        self.journal = _Journal(piece.number + 1, piece.last_document, self.journal.written, dropped)

    def _save(self) -> None:
        """The tokens are on disk, now the journal; only then are pieces removed."""
        content = {
            **self.journal._asdict(),
            "written": [*self.journal.written],
            "dropped": asdict(self.journal.dropped),
        }
        write_whole(self._folder.merge, json.dumps(content))
        for path in self._folder.pieces.glob("*.npz"):
            if int(path.stem) < self.journal.piece:
                path.unlink()


def _read_journal(folder: WorkFolder) -> _Journal | None:
    if not folder.merge.is_file():
        return None
    content = json.loads(folder.merge.read_text(encoding="utf-8"))
    return _Journal(**{**content, "written": Written(*content["written"]), "dropped": Dropped(**content["dropped"])})


def _write_validation(writer: TokenWriter, folder: WorkFolder, parts: Parts) -> None:
    for number in range(len(parts.ends) - 1):
        held_out = parts.of_piece(number) == VALIDATION
        if held_out.any():
            encoded = read_piece(piece_path(folder.pieces, number)).encoded
            writer.extend(_select(encoded, held_out & (encoded.sentence_counts > 0)))


def _chooser(folder: WorkFolder) -> Callable[[_Task], _Chosen]:
    """What each process does: it has the shingles of the validation part at hand."""
    store = open_tokens(folder.corpus, "validation")
    table = ShingleTable.of(store, Folding.of(load_tokenizer(folder.tokenizer)))
    return partial(_choose, folder=folder, table=table)


def _choose(task: _Task, *, folder: WorkFolder, table: ShingleTable) -> _Chosen:
    encoded = read_piece(piece_path(folder.pieces, task.number)).encoded
    kept, filled = task.parts != DROPPED, encoded.sentence_counts > 0
    train = (task.parts == TRAIN) & filled
    documents = _select(encoded, train)
    copies = table.near_copies(documents.tokens, documents.lengths())
    if copies.any():
        train[train] = ~copies
        documents = _select(encoded, train)
    dropped = Dropped(
        duplicate_documents=int(np.count_nonzero(~kept)),
        near_copies_of_validation=int(np.count_nonzero(copies)),
        documents_without_tokens=int(np.count_nonzero(kept & ~filled)),
        sentences_without_tokens=int(encoded.empty_counts[kept].sum()),
    )
    return _Chosen(documents, dropped)


def _select(encoded: Encoded, chosen: Booleans) -> Documents:
    """Those documents; none of them is empty."""
    sentences = np.repeat(chosen, encoded.sentence_counts)
    tokens = np.repeat(sentences, encoded.token_counts)
    return Documents(
        encoded.tokens[tokens],
        encoded.token_counts[sentences],
        encoded.sentence_counts[chosen],
        None if encoded.words is None else encoded.words[tokens],
    )
