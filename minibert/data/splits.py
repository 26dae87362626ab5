"""Which documents are held out? Those with the smallest hashes: equal texts share a part, whatever their order."""

import hashlib
import re

import numpy as np
import numpy.typing as npt

TRAIN, VALIDATION, DROPPED = range(3)

_WORD = re.compile(r"\w")


def hash_document(text: str) -> int:
    """A 64-bit hash of the text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def has_words(text: str) -> bool:
    """Whether a tokenizer finds something in it for sure; a few marks and invisible characters may leave no token."""
    return _WORD.search(text) is not None


def split_documents(
    hashes: npt.NDArray[np.uint64],
    with_words: npt.NDArray[np.bool_],
    *,
    share: float,
    most: int,
    deduplicate: bool,
) -> npt.NDArray[np.int8]:
    """The part of each document: `TRAIN`, `VALIDATION`, or `DROPPED` where an equal one came before.

    Of the different documents with words, a `share` of at most one half is held out: 2 at least where
    there are 4 or more, none where there are fewer (either part needs two, so that next-sentence pairs can be drawn),
    and `most` at most.
    """
    candidates = np.unique(hashes[with_words])
    count = _held_out(len(candidates), share, most)
    limit = candidates[count - 1] if count else 0
    parts = np.where(with_words & (hashes <= limit) & (count > 0), VALIDATION, TRAIN).astype(np.int8)
    if deduplicate:
        repeated = np.ones(len(hashes), dtype=np.bool_)
        repeated[np.unique(hashes, return_index=True)[1]] = False
        parts[repeated] = DROPPED
    return parts


def _held_out(documents: int, share: float, most: int) -> int:
    if documents < 4 or share == 0:
        return 0
    return min(max(round(share * documents), 2), most)
