"""Where does a random second text come from? From anywhere in any other document.

It begins with another sentence than the first text does, and with another than the one that truly follows it, word
for word, as long as some draws can find one. The offsets may lie in a mapped file, so they are touched at few places.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.data.blocks import Booleans, Integers, SentenceStore

Texts = tuple[Integers, Integers, Integers]
"""Where texts begin and end in the stream, and where their first sentence ends: [n] each."""

_REDRAWS = 32
_WINDOW = 16


def draw_texts(
    corpus: SentenceStore,
    document: Integers,
    sentences: tuple[Integers, Integers],
    wanted: Integers,
    rng: np.random.Generator,
) -> tuple[Integers, Integers, Booleans]:
    """Texts of whole sentences with `wanted` tokens or more, or to the end of their document.

    Args:
        corpus: two documents or more.
        document: [n], the documents that a text must not come from.
        sentences: [n] each: the first sentence of the first text, and the one after its last; that one may be of the
            next document, and does not matter then.
        wanted: [n], tokens that there is room for.
        rng: is asked for each draw.

    Returns:
        Where the tokens of each text begin and end in the stream, and whether it begins like one of the `sentences`.
    """
    begin, end, first = _draw(corpus, document, wanted, rng)
    same = _equal_any(corpus, document, sentences, begin, first)
    for _ in range(_REDRAWS):
        again = np.flatnonzero(same)
        if not len(again):
            break
        begin[again], end[again], first[again] = _draw(corpus, document[again], wanted[again], rng)
        rows = tuple(sentence[again] for sentence in sentences)
        same[again] = _equal_any(corpus, document[again], rows, begin[again], first[again])
    return begin, end, same


def _draw(corpus: SentenceStore, document: Integers, wanted: Integers, rng: np.random.Generator) -> Texts:
    documents = corpus.document_offsets
    which, where = rng.random((2, len(document)))
    other = (which * (len(documents) - 2)).astype(np.int64)
    other += other >= document  # every document but the chunk's own is equally likely
    first, last = documents[other], documents[other + 1]
    sentence = first + (where * (last - first)).astype(np.int64)
    return _reach(corpus.sentence_offsets, sentence, last, wanted)


def _reach(offsets: Integers, sentence: Integers, last: Integers, wanted: Integers) -> Texts:
    """The text that begins at `sentence`; its end is looked for in windows of some sentences, as few as are needed."""
    window = _window(offsets, sentence, last)
    begin, first, end = window[:, 0].copy(), window[:, 1].copy(), np.empty_like(sentence)
    rows, goal = np.arange(len(sentence)), begin + wanted
    while True:
        there = window >= goal[rows, None]
        end[rows] = window[np.arange(len(rows)), np.where(there[:, -1], there.argmax(axis=1), _WINDOW)]
        sentence = sentence + _WINDOW
        more = ~there[:, -1] & (sentence < last)
        if not more.any():
            return begin, end, first
        rows, sentence, last = rows[more], sentence[more], last[more]
        window = _window(offsets, sentence, last)


def _window(offsets: Integers, sentence: Integers, last: Integers) -> npt.NDArray[Any]:
    """[n, 17] the offsets of the next sentences, and of the one after the last of the document again and again."""
    return offsets[np.minimum(sentence[:, None] + np.arange(_WINDOW + 1), last[:, None])]


def _equal_any(
    corpus: SentenceStore, document: Integers, sentences: tuple[Integers, ...], begin: Integers, end: Integers
) -> Booleans:
    """True where tokens `begin` to `end` are those of one of the sentences; a sentence behind the document is none."""
    last = corpus.document_offsets[document + 1]
    equal = np.zeros(len(begin), bool)
    for sentence in sentences:
        inside = np.minimum(sentence, last - 1)
        x, y = corpus.sentence_offsets[inside], corpus.sentence_offsets[inside + 1]
        for row in np.flatnonzero((sentence < last) & (y - x == end - begin) & ~equal):
            left, right = corpus.tokens(int(x[row]), int(y[row])), corpus.tokens(int(begin[row]), int(end[row]))
            equal[row] = left.tobytes() == right.tobytes()
    return equal
