"""What are the two texts of an instance, and what is their label? One answer for each objective.

a chunk            s s s s s
next_sentence      A A|B B B     B follows A: label 0
                   A A|- - -     B is from another document: label 1; the next chunk takes the rest
sentence_order     A A|B B B     label 0
                   B B B|A A     the same texts, swapped: label 1
none               A A A A A     one text, no label
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from minibert.data.blocks import Block, Booleans, Integers, SentenceStore
from minibert.data.negatives import draw_texts
from minibert.errors import UserError

_PATIENCE = 16
"""Labels that are owed are made up for over at least so many free choices, so that none is known from those before."""


@dataclass(frozen=True)
class Chunks:
    """Sentences `begin` to `end` of a block, one or more, each chunk for one instance of `budget` tokens of text."""

    block: Block
    begin: Integers
    end: Integers
    budget: Integers

    def __len__(self) -> int:
        return len(self.begin)

    def tokens(self) -> tuple[Integers, Integers]:
        """Where each chunk begins and ends in the stream."""
        begin, passed = self.block.begin[self.begin], self.block.passed
        return begin, begin + passed[self.end] - passed[self.begin]


@dataclass(frozen=True)
class Texts:
    """Two ranges of the token stream for each chunk, as long as they are."""

    a_begin: Integers
    a_end: Integers
    b_begin: Integers
    b_end: Integers
    label: Booleans
    next: Integers
    """The sentence of the block where the next chunk begins."""
    is_same: Booleans
    """True where a random text begins like the first one or its continuation, and no other was found."""


class Objective(Protocol):
    """What an instance is made of."""

    @property
    def texts(self) -> int:
        """Texts in an instance, 1 or 2; each has a [SEP] behind it and a token at least."""

    def check(self, corpus: SentenceStore) -> None:
        """Raise `UserError` where the corpus has too little for it."""

    def divide(self, corpus: SentenceStore, chunks: Chunks, owed: float, rng: np.random.Generator) -> Texts:
        """The texts of each chunk; `owed` labels of 1 are missing so far, if half of all shall be 1.

        Both texts are empty where the chunk is too short for them.
        """


@dataclass(frozen=True)
class NextSentence:
    """Does B follow A? Devlin et al. 2019, section 3.1, by the rules of google-research/bert.

    The original tosses a fair coin, and the chunks of one sentence, which are always random, come on top. Here these
    are made up for, so that half of all pairs are random, as near as the text allows.
    """

    texts = 2

    def check(self, corpus: SentenceStore) -> None:
        """A random text needs another document."""
        documents = len(corpus.document_offsets) - 1
        if documents < 2:
            raise UserError(
                f"this part of the corpus has {documents} document{'' if documents == 1 else 's'}; next-sentence pairs "
                "draw the second text from another, so they need 2 at least (in a text file a blank line ends a "
                "document)"
            )

    def divide(self, corpus: SentenceStore, chunks: Chunks, owed: float, rng: np.random.Generator) -> Texts:
        """A takes all sentences but one at most, and at least one."""
        block, middle = chunks.block, _middle(chunks, rng)
        begin, end = chunks.tokens()
        a_end = begin + block.passed[middle] - block.passed[chunks.begin]
        label = _coins(chunks.end - chunks.begin == 1, owed, rng)
        random = np.flatnonzero(label)
        b_begin, b_end, same = a_end.copy(), end.copy(), np.zeros(len(label), bool)
        wanted = np.maximum(chunks.budget - (a_end - begin), 1)[random]
        sentence = block.sentence[chunks.begin[random]]
        after = sentence + (middle - chunks.begin)[random]
        b_begin[random], b_end[random], same[random] = draw_texts(
            corpus, block.document[chunks.begin[random]], (sentence, after), wanted, rng
        )
        return Texts(begin, a_end, b_begin, b_end, label, np.where(label, middle, chunks.end), same)


@dataclass(frozen=True)
class SentenceOrder:
    """Which of two texts came first? ALBERT, Lan et al. 2020, section 3.1."""

    texts = 2

    def check(self, corpus: SentenceStore) -> None:
        """Any text will do."""

    def divide(self, corpus: SentenceStore, chunks: Chunks, owed: float, rng: np.random.Generator) -> Texts:
        """A sentence that is alone is cut inside; a token that is alone makes no texts."""
        begin, end = chunks.tokens()
        single = chunks.end - chunks.begin == 1
        end = np.where(end - begin == 1, begin, end)
        inside = np.minimum(begin + 1 + (rng.random(len(begin)) * (end - begin - 1)).astype(np.int64), end)
        cut = np.where(single, inside, chunks.block.begin[_middle(chunks, rng) - single])
        label = _coins(np.zeros(len(begin), bool), owed, rng)
        a_begin, b_begin = np.where(label, (cut, begin), (begin, cut))
        a_end, b_end = np.where(label, (end, cut), (cut, end))
        return Texts(a_begin, a_end, b_begin, b_end, label, chunks.end, np.zeros_like(label))


@dataclass(frozen=True)
class OneText:
    """Masked language modelling alone: RoBERTa, Liu et al. 2019, section 4.2 (doc-sentences)."""

    texts = 1

    def check(self, corpus: SentenceStore) -> None:
        """Any text will do."""

    def divide(self, corpus: SentenceStore, chunks: Chunks, owed: float, rng: np.random.Generator) -> Texts:
        """A is the whole chunk."""
        begin, end = chunks.tokens()
        no = np.zeros(len(begin), bool)
        return Texts(begin, end, end, end, no, chunks.end, no)


OBJECTIVES: dict[str, Objective] = {
    "next_sentence": NextSentence(),
    "sentence_order": SentenceOrder(),
    "none": OneText(),
}


def _middle(chunks: Chunks, rng: np.random.Generator) -> Integers:
    """The sentence after the first 1 to n - 1 of n sentences, any number alike; after the one, where there is one."""
    return chunks.begin + 1 + (rng.random(len(chunks)) * (chunks.end - chunks.begin - 1)).astype(np.int64)


def _coins(forced: Booleans, owed: float, rng: np.random.Generator) -> Booleans:
    """True where `forced`, and where a coin says so that shows it the more often, the more are owed."""
    free = len(forced) - int(forced.sum())
    share = 0.5 + (owed - (len(forced) - free) / 2) / max(free, _PATIENCE)
    return forced | (rng.random(len(forced)) < share)
