"""The text that all contenders read: as many bytes as wanted, made of documents that are no copies of each other.

The documents of all sources come in turn, round after round. In each round every seventh word or so is left out, so
that no document is a duplicate of another, and every 50th gets another letter: in real text about so many words are
new however much was read before, and who remembers words must meet as many.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from minibert.data.random import generator
from minibert.data.sources import read_documents
from minibert.data.tokenizer import save_tokenizer, train_tokenizer

LEFT_OUT, CHANGED = 0.15, 0.02
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile("[\u2e80-\u9fff]|[^ \u2e80-\u9fff]+ ?| ")


def write_copies(sources: Sequence[str], path: Path, *, size: int) -> int:
    """Write JSON lines with `size` bytes of text or a little more; how many there are."""
    rng = generator(0)
    texts = filter(None, (thinned(text, rng) for _ in count() for text in in_turn(sources)))
    return _write(_first(texts, size), path)


def write_documents(sources: Sequence[str], path: Path, *, size: int) -> int:
    """Write documents as they are, once, until there are `size` bytes of text; how many there are."""
    return _write(_first(in_turn(sources), size), path)


def write_tokenizer(sources: Sequence[str], directory: Path, *, vocab_size: int, size: int = 10_000_000) -> None:
    """Train a tokenizer on the first `size` bytes of text."""
    save_tokenizer(train_tokenizer(_first(in_turn(sources), size), vocab_size=vocab_size), directory)


def in_turn(sources: Sequence[str]) -> Iterator[str]:
    """The documents of the sources, one of each, and again, until all have ended."""
    readers = [read_documents(source) for source in sources]
    while readers:
        found = [next(reader, None) for reader in readers]
        yield from (document.text for document in found if document)
        readers = [reader for reader, document in zip(readers, found, strict=True) if document]


def thinned(text: str, rng: np.random.Generator) -> str:
    """The text with some words left out, Chinese characters being words, and some letters changed."""
    lines = (_thinned_line(_WORD.findall(line), rng) for line in text.split("\n"))
    return "\n".join(line for line in lines if line.strip())


def _thinned_line(words: list[str], rng: np.random.Generator) -> str:
    drawn = zip(words, rng.random(len(words)).tolist(), strict=True)
    kept = ((word, draw) for word, draw in drawn if draw >= LEFT_OUT)
    return "".join(_changed(word, rng) if draw < LEFT_OUT + CHANGED else word for word, draw in kept)


def _changed(word: str, rng: np.random.Generator) -> str:
    place, letter = rng.integers(len(word)), _LETTERS[rng.integers(len(_LETTERS))]
    return f"{word[:place]}{letter}{word[place + 1 :]}" if word[place].lower() in _LETTERS else word


def _first(texts: Iterator[str], size: int) -> Iterator[str]:
    """Texts until there are `size` bytes of them."""
    passed = 0
    for text in texts:
        yield text
        passed += len(text.encode("utf-8"))
        if passed >= size:
            return


def _write(texts: Iterator[str], path: Path) -> int:
    written = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            written += len(text.encode("utf-8"))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return written
