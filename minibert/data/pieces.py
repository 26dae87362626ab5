"""How is text cut into pieces, each of which is encoded by itself, perhaps on another machine, and kept till all are?

    documents   [.........][.....][..................] ...    in the order of the sources
    pieces      [        0       ][        1         ] ...    at least PIECE_CHARACTERS, up to the end of a document
    pieces/     0000000.npz       0000001.npz                 token ids, lengths, hashes; no special tokens

The numbers of pieces depend on the text alone.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.data.encoding import Encoded, Encoder
from minibert.data.sources import Document
from minibert.data.splits import has_words, hash_document
from minibert.data.tokenizer import load_tokenizer
from minibert.errors import UserError
from minibert.files import write_whole

PIECE_CHARACTERS = 1_000_000
"""A piece ends with the document that fills it to this many characters."""


class Piece(NamedTuple):
    """Documents of a piece, encoded."""

    hashes: npt.NDArray[np.uint64]
    """[documents]"""
    with_words: npt.NDArray[np.bool_]
    """[documents]"""
    encoded: Encoded


def cut(documents: Iterable[Document], characters: int | None = None) -> Iterator[list[str]]:
    """The texts of the documents in pieces of at least so many characters, by default `PIECE_CHARACTERS`."""
    characters = characters or PIECE_CHARACTERS
    texts: list[str] = []
    size = 0
    for document in documents:
        texts.append(document.text)
        size += len(document.text)
        if size >= characters:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def piece_path(folder: Path, number: int) -> Path:
    """Where a piece lies."""
    return folder / f"{number:07}.npz"


class NumberedTexts(NamedTuple):
    """A piece that is to be encoded."""

    number: int
    texts: Sequence[str]


def encoder_of_pieces(
    tokenizer: Path, folder: Path, *, language: str, mark_words: bool
) -> Callable[[NumberedTexts], int]:
    """A function that encodes a piece and writes it; each process makes its own."""
    encoder = Encoder(load_tokenizer(tokenizer), language=language, mark_words=mark_words)
    return partial(_encode_piece, encoder=encoder, folder=folder, small=encoder.vocab_size <= 1 << 16)


def _encode_piece(piece: NumberedTexts, *, encoder: Encoder, folder: Path, small: bool) -> int:
    """Write the piece; the number of its documents."""
    encoded = encoder.encode(piece.texts)
    hashes = np.array([hash_document(text) for text in piece.texts], np.uint64)
    with_words = np.array([has_words(text) for text in piece.texts], np.bool_)
    write_piece(piece_path(folder, piece.number), Piece(hashes, with_words, encoded), small=small)
    return len(piece.texts)


def write_piece(path: Path, piece: Piece, *, small: bool) -> None:
    """Write a piece whole or not at all; ids take two bytes where they are `small`."""
    tokens, *counts, words = piece.encoded
    arrays: dict[str, Any] = dict(zip(_ARRAYS, (piece.hashes, piece.with_words, tokens, *counts), strict=True))
    arrays["tokens"] = tokens.astype(np.uint16 if small else np.int32)
    if words is not None:
        arrays["words"] = np.packbits(words)
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_whole(path, content.getvalue())


def read_piece(path: Path) -> Piece:
    """All of a piece. Raises `UserError` where the file is damaged."""
    with _opened(path) as arrays:
        hashes, with_words, *encoded = (arrays[name] for name in _ARRAYS)
        tokens, token_counts, sentence_counts, empty_counts = encoded
        words = np.unpackbits(arrays["words"], count=len(tokens)).view(np.bool_) if "words" in arrays else None
    return Piece(hashes, with_words, Encoded(tokens, token_counts, sentence_counts, empty_counts, words))


def read_hashes(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The hashes of the documents of a piece, and which have words; nothing else is read."""
    with _opened(path) as arrays:
        return arrays["hashes"], arrays["with_words"]


_ARRAYS = ("hashes", "with_words", "tokens", "token_counts", "sentence_counts", "empty_counts")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and run the same command again") from error
