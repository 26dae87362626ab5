"""Text that says nothing, for where there is none: words of random syllables, the common ones common as in text."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minibert.data.random import generator

_WORDS = 20_000
_CONSONANTS, _VOWELS = list("bdfgklmnprstvz"), ["a", "e", "i", "o", "u", "ai", "ou"]


def write_words(path: Path, *, size: int) -> Path:
    """Write about so many characters as JSON lines, documents of 3 to 30 sentences of 4 to 25 words."""
    rng, written = generator(0), 0
    words = np.array([_word(rng) for _ in range(_WORDS)])
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while written < size:
            text = " ".join(_sentences(words, rng))
            written += len(text)
            file.write(json.dumps({"text": text}) + "\n")
    return path


def _sentences(words: np.ndarray, rng: np.random.Generator) -> Iterator[str]:
    for _ in range(rng.integers(3, 31)):
        ranks = len(words) ** rng.random(rng.integers(4, 26)) - 1  # Zipf 1949
        yield " ".join(words[ranks.astype(int)]).capitalize() + "."


def _word(rng: np.random.Generator) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.integers(1, 4)))
