"""Corpora in memory, to plan and to make batches from."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minibert.data.tokenizer import Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE = 997
IDS = np.arange(SIZE)
WORDS = Vocabulary(
    size=SIZE, pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK, special=IDS < 5, continuation=(IDS > 5) & (IDS % 5 == 0)
)


@dataclass(frozen=True)
class Store:
    """`documents` are lists of sentences, a sentence is a list of ids."""

    documents: list[list[list[int]]]

    @cached_property
    def document_offsets(self):
        return np.cumsum([0, *(len(d) for d in self.documents)])

    @cached_property
    def sentence_offsets(self):
        return np.cumsum([0, *(len(s) for d in self.documents for s in d)])

    @cached_property
    def stream(self):
        return np.array([i for d in self.documents for s in d for i in s], dtype=np.uint16)

    def tokens(self, begin, end):
        return self.stream[begin:end]

    def documents_of(self, positions):
        return np.searchsorted(self.sentence_offsets[self.document_offsets], positions, side="right") - 1


def unlike(*lengths_of_documents: list[int]) -> Store:
    """Documents with sentences of the given lengths, no two tokens alike."""
    ids = iter(range(5, 65_000))
    return Store([[[next(ids) for _ in range(n)] for n in lengths] for lengths in lengths_of_documents])


def like_prose(*, sentences: int, seed: int = 7) -> Store:
    """Documents of 1 to some hundred sentences, of 1 to some hundred tokens, with the spread of English text."""
    rng = np.random.default_rng(seed)
    documents = []
    while sentences > 0:
        count = min(1 + int(rng.lognormal(1.9, 1.1)), 400, sentences)
        lengths = 1 + rng.lognormal(3.0, 0.7, count).astype(int)
        documents.append([rng.integers(5, SIZE, n).tolist() for n in lengths])
        sentences -= count
    return Store(documents)
