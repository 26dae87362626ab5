"""Which documents is a tokenizer trained on? All of them; in a long text every second, every fourth, every eighth...

    hash of a document     ...0110100     its level is the number of zeros at the end: 2
    level                  0     1     2     3  ...
    share of documents     1/2   1/4   1/8   1/16

As long as the documents are more than asked, those of the lowest level are left out. So a sample depends on which
documents there are alone, not on their order or on the processes that count them, and one reading is enough.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minibert.data.splits import check_different, has_words, hash_document
from minibert.data.wordpiece import count_chunks

LEVELS = 17
"""All documents of higher levels are in the last one."""

MOST_CHUNKS = 2_000_000
"""Different chunks that are counted, by levels. To learn pieces from a word takes about 500 bytes."""


class Level(NamedTuple):
    """Documents of one level: how many they are, their characters, and the counts of their chunks."""

    documents: int
    characters: int
    chunks: Counter[str]


class Part(NamedTuple):
    """What was counted in a part of the text."""

    documents: int
    different: frozenset[int]
    """Hashes of documents with words, two at most: are there two that differ?"""
    levels: dict[int, Level]


class SampleTask(NamedTuple):
    """Documents, and the lowest level whose chunks are to be counted."""

    texts: Sequence[str]
    lowest: int


def counter() -> Callable[[SampleTask], Part]:
    """What each process does."""
    return count_part


def count_part(task: SampleTask) -> Part:
    """Count the chunks of documents."""
    texts, lowest = task
    different: set[int] = set()
    chosen: dict[int, list[str]] = {}
    for text in texts:
        code = hash_document(text)
        if len(different) < 2 and has_words(text):
            different.add(code)
        level = min((code & -code).bit_length() - 1, LEVELS - 1) if code else LEVELS - 1
        chosen.setdefault(level, []).append(text)
    levels = {
        level: Level(len(some), sum(map(len, some)), count_chunks(some) if level >= lowest else Counter())
        for level, some in chosen.items()
    }
    return Part(len(texts), frozenset(different), levels)


@dataclass
class Sample:
    """The counts of the chunks of a sample of at most `characters`, or of one document at least; it grows by parts."""

    characters: int
    lowest: int = 0
    """The lowest level that is in the sample."""
    documents: int = 0
    """All that were read, in the sample or not."""
    _different: frozenset[int] = frozenset()
    _levels: list[Level] = field(default_factory=lambda: [Level(0, 0, Counter()) for _ in range(LEVELS)])

    def add(self, part: Part) -> None:
        """Add what was counted in a part of the text, in any order of the parts."""
        self.documents += part.documents
        self._different = frozenset(sorted(self._different | part.different)[:2])
        for number, (documents, characters, chunks) in part.levels.items():
            before = self._levels[number]
            if number >= self.lowest:
                before.chunks.update(chunks)
            self._levels[number] = Level(before.documents + documents, before.characters + characters, before.chunks)
        while self._is_too_large():
            self._levels[self.lowest].chunks.clear()
            self.lowest += 1

    def chunks(self) -> Counter[str]:
        """The counts of all chunks of the sample. Raises `UserError` where the text has not two different documents."""
        check_different(len(self._different), self.documents)
        total: Counter[str] = Counter()
        for level in self._levels[self.lowest :]:
            total.update(level.chunks)
        return total

    def _is_too_large(self) -> bool:
        kept, left = self._levels[self.lowest :], self._levels[self.lowest + 1 :]
        is_more = sum(level.characters for level in kept) > self.characters
        is_more |= sum(len(level.chunks) for level in kept) > MOST_CHUNKS
        return is_more and any(level.documents for level in left)
