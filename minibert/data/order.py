"""In what order are the parts of a corpus read? A random order of 0 to n - 1 that is computed and not stored.

    position -> (left | right) -> left ^ f1(right), right -> ... eight rounds -> index

A Feistel network turns each number of 2k bits into another, one to one, whatever its function f is (Luby and Rackoff
1988). Where the index is n or more, the network is asked again, with that index (cycle walking, Black and Rogaway
2002); as numbers come back to where they started, an index below n is found.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]
Words = npt.NDArray[np.uint64]

_ROUNDS = 8


class Permutation:
    """A pseudo-random permutation of 0 to size - 1: `permutation[positions]` are the indices at those positions.

    It takes the same few bytes for any size; `rng` is asked for the keys of the rounds.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size = size
        self._half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))  # bits: size is at most 4 ** half
        self._keys = rng.integers(1 << 64, size=_ROUNDS, dtype=np.uint64)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, positions: Integers) -> npt.NDArray[np.int64]:
        """The indices at some positions, each from 0 to size - 1."""
        index = self._encrypt(np.asarray(positions).astype(np.uint64))
        while len(outside := np.flatnonzero(index >= self._size)):
            index[outside] = self._encrypt(index[outside])
        return index.astype(np.int64)

    def _encrypt(self, numbers: Words) -> Words:
        low = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = numbers >> self._half, numbers & low
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & low)
        return (left << self._half) | right


def _mix(words: Words) -> Words:
    """The last step of splitmix64 (Steele, Lea and Flood 2014): each bit of a word changes half of all bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
