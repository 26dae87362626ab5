"""Which texts stand in which row? Pairs of texts, packed until a row is full.

    a document of sentences         s s s s s s s s s s
    chunks as long as there is room [ s s s s ][ s s s ][ s s s ]
    pairs of texts A and B          [ A|B B B ][ A A|- ]...          see `texts`: what B is, and the label
    rows of pairs                   [ A|B B B | A A|B ][ A|B B | ... ]

A plan holds positions only. It is computed from the lengths of the sentences of one block, all lanes in lockstep, and
reads tokens only to see whether two sentences of equal length are the same text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from minibert.data.blocks import PLAN, Block, Blocks, Booleans, Integers, SentenceStore
from minibert.data.packing import MIN_ROOM, OpenRows, lanes, merged
from minibert.data.texts import OBJECTIVES, Chunks, Texts
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

_SHORTEST = 8
"""Mean tokens of the instances of a row, at least: a row has places for so many."""


@dataclass(frozen=True)
class PairSettings:
    """What the texts of an instance are, how long they are, and how they are packed."""

    max_length: PositiveInt = 128
    """Tokens in a row, [CLS] and [SEP] of all its instances included."""

    short_sequence_probability: UnitInterval = 0.1
    """Share of instances cut to a random shorter length, so that the model meets short inputs too."""

    objective: Literal["next_sentence", "sentence_order", "none"] = "next_sentence"
    """What is asked about two texts: does B follow A (BERT), or were they swapped (ALBERT)? none: one text, and nothing
    is asked (RoBERTa)."""

    packed: bool = True
    """Whether a row is filled with instances, which do not see each other; if not, it holds one, and padding."""

    def __post_init__(self) -> None:
        texts = OBJECTIVES[self.objective].texts
        if self.max_length < 2 * texts + 1:
            parts = "three special tokens and two texts" if texts == 2 else "two special tokens and a text"
            raise UserError(f"max_length is {self.max_length}; {parts} need {2 * texts + 1} at least")

    def check(self, corpus: SentenceStore) -> None:
        """Raise `UserError` where a corpus has too little for the objective."""
        OBJECTIVES[self.objective].check(corpus)

    @property
    def specials(self) -> int:
        """[CLS], and a [SEP] behind each text."""
        return OBJECTIVES[self.objective].texts + 1

    @property
    def has_question(self) -> bool:
        """Whether something is asked about two texts."""
        return OBJECTIVES[self.objective].texts == 2

    @property
    def instances_per_row(self) -> int:
        """Places for instances in a row."""
        return max(1, self.max_length // _SHORTEST) if self.packed else 1


@dataclass(frozen=True)
class Rows:
    """A block of rows, in the order in which they are trained on. A pair is two ranges of the token stream."""

    first_pair: Integers
    """[rows + 1]: pairs `[r]` to `[r + 1]` are those of row r, from left to right."""
    lengths: Integers
    """[rows]: tokens, special ones included."""
    a_begin: Integers
    a_end: Integers
    b_begin: Integers
    b_end: Integers
    """[pairs] each. B is empty where the objective has one text."""
    label: Integers
    """[pairs]: 0 where the texts stand as in their document, 1 where B is random or A and B are swapped."""
    same_text: int
    """Random texts that begin like A or like what follows it, word for word: no other was found."""

    def __len__(self) -> int:
        return len(self.lengths)


def plan_block(blocks: Blocks, settings: PairSettings, number: int) -> Rows:
    """The rows of block `number` of the stream, in random order: a function of corpus, seed, settings and number.

    The rules are those of google-research/bert, create_pretraining_data.py, but for two. A row that a document ends
    in takes more pairs, as long as there is room. And a coin for each chunk says whether it is short; the original
    tosses one for a document, and as a document in short pieces gives many of them, far more are short than it says.

    Raises:
        UserError: the corpus has too little for the objective.
    """
    settings.check(blocks.corpus)
    rng = blocks.generator(PLAN, number)
    pairs = _joined(_lockstep(blocks.corpus, blocks.block(number), settings, rng))
    tokens = pairs.a_kept + pairs.b_kept + settings.specials
    row, count = merged(pairs.row, tokens, length=settings.max_length, most=settings.instances_per_row)
    row = rng.permutation(count)[row]
    lengths, sizes = np.bincount(row, tokens, count).astype(np.int64), np.bincount(row, minlength=count)
    pairs = pairs.take(np.argsort(row, kind="stable"))
    a_begin, b_begin = pairs.a_begin + _front(pairs.a_lost, rng), pairs.b_begin + _front(pairs.b_lost, rng)
    return Rows(
        first_pair=np.concatenate(([0], sizes.cumsum())),
        lengths=lengths,
        a_begin=a_begin,
        a_end=a_begin + pairs.a_kept,
        b_begin=b_begin,
        b_end=b_begin + pairs.b_kept,
        label=pairs.label.astype(np.int64),
        same_text=int(pairs.same.sum()),
    )


def label_share(corpus: SentenceStore, settings: PairSettings, *, seed: int = 0) -> float:
    """The share of label 1 in the first block of text.

    Raises:
        UserError: the corpus has too little for the objective.
    """
    label = plan_block(Blocks(corpus, seed), settings, 0).label
    return float(label.mean()) if len(label) else 0.0


@dataclass(frozen=True)
class _Pairs:
    """Texts of `kept` tokens, after `lost` ones were dropped at either end."""

    row: Integers
    a_begin: Integers
    a_kept: Integers
    a_lost: Integers
    b_begin: Integers
    b_kept: Integers
    b_lost: Integers
    label: Booleans
    same: Booleans

    def take(self, which: Integers) -> "_Pairs":
        return _Pairs(*(getattr(self, field.name)[which] for field in fields(self)))


def _joined(steps: Iterator[_Pairs]) -> _Pairs:
    pairs = [_Pairs(*np.zeros((7, 0), np.int64), *np.zeros((2, 0), bool)), *steps]
    return _Pairs(*(np.concatenate([getattr(step, field.name) for step in pairs]) for field in fields(_Pairs)))


def _lockstep(
    corpus: SentenceStore, block: Block, settings: PairSettings, rng: np.random.Generator
) -> Iterator[_Pairs]:
    """Step k yields the k-th pair of every lane that still has sentences."""
    objective = OBJECTIVES[settings.objective]
    at, end = lanes(block)
    rows = OpenRows(len(at), length=settings.max_length, most=settings.instances_per_row)
    owed = 0.0  # labels of 1 that are missing from a half
    while len(at):
        rows.assign(block.passed[block.last[at]] - block.passed[at])
        chunks = _chunks(block, at, rows.room - settings.specials, settings, rng)
        texts = objective.divide(corpus, chunks, owed, rng)
        pairs = _cut(rows.number, texts, chunks.budget)
        made = pairs.a_kept > 0
        rows.add(made, pairs.a_kept + pairs.b_kept + settings.specials)
        yield pairs if made.all() else pairs.take(np.flatnonzero(made))
        owed += np.count_nonzero(made) / 2 - np.count_nonzero(pairs.label & made)
        at = texts.next
        if (at >= end).any():
            going = np.flatnonzero(at < end)
            at, end = at[going], end[going]
            rows.keep(going)


def _chunks(block: Block, begin: Integers, room: Integers, settings: PairSettings, rng: np.random.Generator) -> Chunks:
    """Sentences until the room is filled or the span ends; a share of the chunks is given less room than there is.

    Where the span has as many, there is a sentence for each text, even if the first one fills the room: in little room
    all pairs would be random otherwise, and short ones could be told by their length.
    """
    short, size = rng.random((2, len(begin)))
    least = np.minimum(room, MIN_ROOM - settings.specials)
    less = least + (size * (room - least + 1)).astype(np.int64)
    budget = np.where(short < settings.short_sequence_probability, less, room)
    filled = np.searchsorted(block.passed, block.passed[begin] + budget)
    end = np.minimum(np.maximum(filled, begin + settings.specials - 1), block.last[begin])
    return Chunks(block, begin, end, budget)


def _cut(row: Integers, texts: Texts, budget: Integers) -> _Pairs:
    """The longer of two texts loses a token, B where they are equal, until both fit the budget."""
    a, b = texts.a_end - texts.a_begin, texts.b_end - texts.b_begin
    a_kept = np.minimum(a, np.maximum(budget - b, -(-budget // 2)))
    b_kept = np.minimum(b, np.maximum(budget - a, budget // 2))
    return _Pairs(
        row.copy(), texts.a_begin, a_kept, a - a_kept, texts.b_begin, b_kept, b - b_kept, texts.label, texts.is_same
    )


def _front(lost: Integers, rng: np.random.Generator) -> Integers:
    """How many of the lost tokens stood at the front: for each one a coin decides."""
    front = np.zeros_like(lost)
    front[lost > 0] = rng.binomial(lost[lost > 0], 0.5)
    return front
