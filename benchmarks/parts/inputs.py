"""Masked sequences of given lengths, as either side takes them: padded to the longest, or packed into few rows.

Each is [CLS] A [SEP] B [SEP] of random words, the common ones common as in text, 15 % of them masked. Both sides get
the same sequences in each step.
"""

from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from parts.shapes import VOCABULARY
from parts.work import Reading
from torch import Tensor

from minibert.data.masking import IGNORED
from minibert.data.ragged import Inputs, pack
from minibert.data.random import generator
from minibert.data.sources import read_documents
from minibert.data.tokenizer import train_tokenizer

Batch = dict[str, Tensor]
Integers = npt.NDArray[np.int64]

MASKED = 0.15
SPREAD = {"rotten-tomatoes": (25, 0.44), "imdb": (233, 0.64)}
"""Median and standard deviation of the logarithm of lengths in pieces; measured, with a vocabulary of 30,522."""
_PAD, _CLS, _SEP, _MASK, _WORDS = 0, 101, 102, 103, 104
_SHORTEST, _SPECIALS = 5, 3
_TEXTS = 5_000
_MULTIPLE = 64  # of the places that are read, as in pretraining


class Sequences(NamedTuple):
    """Sequences on end."""

    inputs: Inputs
    labels: Integers
    """[tokens]: the true token where one is masked, else -100."""
    pairs: Integers
    """[sequences]: 0 = continuation, 1 = random."""

    @property
    def tokens(self) -> int:
        """Real ones, special ones included."""
        return int(self.inputs.offsets[-1])

    @property
    def readings(self) -> list[Reading]:
        """How long each is, and how many of its tokens are masked."""
        masked = np.add.reduceat(self.labels != IGNORED, self.inputs.offsets[:-1], dtype=np.int64)
        return [Reading(*both) for both in zip(self.inputs.lengths.tolist(), masked.tolist(), strict=True)]


def lengths_like(name: str, *, longest: int, tokens: int, seed: int) -> Integers:
    """Lengths with the spread of a data set's, cut at `longest`, until there are so many tokens."""
    middle, spread = SPREAD[name]
    drawn = generator(seed).lognormal(np.log(middle), spread, tokens // _SHORTEST + 1)
    return first_of(drawn.astype(np.int64), longest=longest, tokens=tokens)


def lengths_of(source: str, *, longest: int, tokens: int, seed: int) -> Integers:
    """The same for the texts of a source, which pretrain/prepare.py could read; each seed begins elsewhere."""
    found = _pieces(source)
    return first_of(np.roll(found, -seed * len(found) // 16), longest=longest, tokens=tokens)


def filling(*, width: int, tokens: int, seed: int) -> Integers:
    """Lengths of a third of a row about, spread as those of imdb; what reaches over the end of a row is cut there."""
    rows = np.arange(width, max(tokens, width) + 1, width)
    drawn = generator(seed).lognormal(np.log(width / 3), SPREAD["imdb"][1], rows[-1] // _SHORTEST)
    ends = np.union1d(drawn.astype(np.int64).clip(_SHORTEST, width).cumsum(), rows)
    ends = ends[ends <= rows[-1]]
    long = np.diff(ends, prepend=0) >= _SHORTEST
    return np.diff(ends[(ends % width == 0) | (long & (-ends % width >= _SHORTEST))], prepend=0)


def first_of(lengths: Integers, *, longest: int, tokens: int) -> Integers:
    """The first lengths, cut at `longest`, until there are so many tokens; they begin anew where they end."""
    cut = lengths.clip(_SHORTEST, longest)
    cut = np.tile(cut, 1 + tokens // int(cut.sum()))
    return cut[: np.searchsorted(cut.cumsum(), tokens) + 1]


def draw(lengths: Integers, *, seed: int, vocabulary: int = VOCABULARY) -> Sequences:
    """Sequences of these lengths; a word of rank r is drawn about 1/r as often as the first  (Zipf 1949)."""
    rng, ends = generator(seed), lengths.cumsum()
    offsets = np.concatenate(([0], ends))
    words = _WORDS - 1 + ((vocabulary - _WORDS) ** rng.random(offsets[-1])).astype(np.int64)
    middles = ends - lengths // 2
    words[ends - lengths], words[middles], words[ends - 1] = _CLS, _SEP, _SEP
    chosen = (rng.random(len(words)) < MASKED) & (words >= _WORDS)
    ids, labels = np.where(chosen, _MASK, words), np.where(chosen, words, IGNORED)
    number = np.repeat(np.arange(len(lengths)), lengths)
    segments = (np.arange(len(words)) > middles[number]).astype(np.int64)
    return Sequences(Inputs(ids, segments, offsets), labels, rng.integers(0, 2, len(lengths)))


def padded(sequences: Sequences) -> Batch:
    """One sequence a row, each as wide as the longest: what a collator of transformers makes."""
    inputs = sequences.inputs
    real = np.arange(inputs.lengths.max()) < inputs.lengths[:, None]
    rows = {"input_ids": np.full(real.shape, _PAD), "labels": np.full(real.shape, IGNORED)}
    rows["token_type_ids"] = np.zeros(real.shape, np.int64)
    for name, values in zip(rows, (inputs.input_ids, sequences.labels, inputs.token_type_ids), strict=True):
        rows[name][real] = values
    rows |= {"attention_mask": real.astype(np.int64), "next_sentence_label": sequences.pairs}
    return {name: torch.from_numpy(array) for name, array in rows.items()}


def packed(sequences: Sequences, width: int) -> Batch:
    """Several sequences a row, as minibert reads them; rows have this width where the sequences on end fill them."""
    inputs = sequences.inputs
    if (inputs.lengths == width).all():
        return _with_places(padded(sequences))
    if set(range(width, sequences.tokens + 1, width)) <= set(inputs.offsets.tolist()) and not sequences.tokens % width:
        return _with_places(_folded(sequences, width))
    everyone = np.arange(len(inputs))
    batch = dict(pack(inputs, everyone, pad_id=_PAD, labels=sequences.pairs).batch)
    labels = pack(Inputs(sequences.labels, inputs.token_type_ids, inputs.offsets), everyone, pad_id=IGNORED)
    batch["next_sentence_label"], batch["labels"] = batch["labels"], labels.batch["input_ids"]
    return _with_places(batch)


def _folded(sequences: Sequences, width: int) -> Batch:
    """Rows that are full: cut where a row ends, and there a sequence ends too."""
    inputs = sequences.inputs
    begins = inputs.offsets[:-1]
    row, number = begins // width, np.arange(len(inputs))
    number = number - np.searchsorted(row, row)
    columns = np.zeros((1 + row[-1], 1 + number.max()), np.int64)
    pairs = np.full_like(columns, IGNORED)
    columns[row, number], pairs[row, number] = begins % width, sequences.pairs
    flat = {
        "input_ids": inputs.input_ids,
        "attention_mask": np.ones_like(inputs.input_ids),
        "token_type_ids": inputs.token_type_ids,
        "labels": sequences.labels,
        "position_ids": np.arange(sequences.tokens) - np.repeat(begins, inputs.lengths),
        "sequence_ids": np.repeat(number + 1, inputs.lengths),
    }
    rows = {name: array.reshape(-1, width) for name, array in flat.items()}
    rows |= {"cls_positions": columns, "next_sentence_label": pairs}
    return {name: torch.from_numpy(array) for name, array in rows.items()}


@cache
def _pieces(source: str) -> Integers:
    """Lengths of the first texts in the pieces of a vocabulary that is made for them."""
    texts = [document.text for document in islice(read_documents(source), _TEXTS)]
    tokenizer = train_tokenizer(texts, vocab_size=VOCABULARY)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return np.array([len(encoding.ids) + _SPECIALS for encoding in encodings])


def _with_places(batch: Batch) -> Batch:
    places = np.flatnonzero(batch["labels"].numpy() != IGNORED)
    return batch | {"masked_positions": torch.from_numpy(np.pad(places, (0, -len(places) % _MULTIPLE)))}
