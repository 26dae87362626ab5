"""Which documents are held out? Those with the smallest hashes: equal texts share a part, whatever their order."""

import hashlib
import re

import numpy as np
import numpy.typing as npt

from minibert.errors import UserError

TRAIN, VALIDATION, DROPPED = range(3)

Hashes = npt.NDArray[np.uint64]
Booleans = npt.NDArray[np.bool_]

_WORD = re.compile(r"\w")


def hash_document(text: str) -> int:
    """A 64-bit hash of the text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def has_words(text: str) -> bool:
    """Whether a tokenizer finds something in it for sure; a few marks and invisible characters may leave no token."""
    return _WORD.search(text) is not None


def check_different(different: int, documents: int) -> None:
    """Raise `UserError` where there are not two different documents with words."""
    if different == 0:
        raise UserError(f"the sources hold no words ({documents} documents); expected text")
    if different == 1:
        raise UserError(
            "the sources hold one document only (not counting equal ones); expected two at least, as a random next "
            "sentence comes from another document (in a text file a blank line ends a document)"
        )


def count_different(hashes: Hashes) -> int:
    """How many different hashes there are."""
    ordered = np.sort(hashes)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + (len(ordered) > 0)


def split_documents(
    hashes: Hashes, with_words: Booleans, *, share: float, most: int, deduplicate: bool
) -> npt.NDArray[np.int8]:
    """The part of each document: `TRAIN`, `VALIDATION`, or `DROPPED` where an equal one came before.

    Of the different documents with words, a `share` of at most one half is held out: 2 at least where
    there are 4 or more, none where there are fewer (either part needs two, so that next-sentence pairs can be drawn),
    and `most` at most. Needs about 25 bytes a document.
    """
    limit = _largest_held_out(hashes[with_words], share, most)
    parts = np.full(len(hashes), TRAIN, np.int8)
    if limit is not None:
        parts[with_words & (hashes <= limit)] = VALIDATION
    if deduplicate:
        parts[_repeated(hashes)] = DROPPED
    return parts


def _largest_held_out(hashes: Hashes, share: float, most: int) -> np.uint64 | None:
    """The hash up to which documents are held out; None where none are."""
    ordered = np.sort(hashes)
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    count = _held_out(int(np.count_nonzero(is_first)), share, most)
    return ordered[np.flatnonzero(is_first)[count - 1]] if count else None


def _repeated(hashes: Hashes) -> Booleans:
    """Where a hash stands that stood before."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    repeated = np.empty(len(hashes), np.bool_)
    repeated[order] = np.append(False, ordered[1:] == ordered[:-1])[: len(hashes)]
    return repeated


def _held_out(documents: int, share: float, most: int) -> int:
    if documents < 4 or share == 0:
        return 0
    return min(max(round(share * documents), 2), most)
