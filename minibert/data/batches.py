"""What does the model see at a place of the text? Batches as a pure function of (corpus, settings, seed, request).

    block 0 of epoch 0 | block 1 of epoch 0 | ... | block 0 of epoch 1 | ...    the endless stream of rows
    [   batch   ][   batch   ]...                                               a request: some rows from a cursor on
    [rank 0|rank 1]                                                             its shares, one after the other
    [mb|mb]                                                                     a share, cut into micro-batches

Nothing is remembered between batches but plans that could be made again, so a run can be resumed at any place and on
any number of processes. A row is masked by numbers of its own that depend on (seed, epoch, block, row) alone.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.data.assembly import Arrays, Assembly, Uniform, instances, mask_draws
from minibert.data.blocks import MASKS, Blocks, SentenceStore
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.stream import Cursor, Part, Stream
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError

__all__ = ["Batch", "Cursor", "PretrainingBatches", "Request", "check_world", "evaluation_batches", "tensors"]

Batch = dict[str, Tensor]
"""input_ids, attention_mask, token_type_ids, labels and, where rows are packed, position_ids, sequence_ids: [rows,
width]. Where texts are paired next_sentence_label and, packed, cls_positions: [rows, instances] or [rows]. All int64;
see `assembly`."""

_PAIRS, _MASKING = PairSettings(), MaskingSettings()


class Request(NamedTuple):
    """What global batch is wanted."""

    step: int
    """The number of its update. It changes nothing."""
    cursor: Cursor
    """Where its first row stands in the stream of rows of `max_length` tokens."""
    rows: int
    max_length: int
    probability: float
    """Share of the tokens to guess."""


class PretrainingBatches:
    """The batches of a pretraining run: `batches[request]` is a global batch, `micro_batches` the share of a process.

    Args:
        corpus: the training documents.
        vocabulary: the ids of the special tokens and of the pieces that continue a word.
        seed: another seed is another order, other pairs, other masks.
        pairs, masking: how texts are paired and tokens masked.

    Raises:
        UserError: the corpus has too little for the objective.
    """

    def __init__(
        self,
        corpus: SentenceStore,
        vocabulary: Vocabulary,
        *,
        seed: int,
        pairs: PairSettings = _PAIRS,
        masking: MaskingSettings = _MASKING,
    ) -> None:
        pairs.check(corpus)
        self._pairs, self._blocks = pairs, Blocks(corpus, seed)
        self._stream = Stream(self._blocks, pairs)
        self._assembly = Assembly(corpus, vocabulary, pairs, masking)

    def __getitem__(self, request: Request) -> Batch:
        """The global batch of a request, whole."""
        return self.micro_batches(request)[0]

    def micro_batches(self, request: Request, *, rank: int = 0, world: int = 1, size: int | None = None) -> list[Batch]:
        """The share of process `rank` of `world` in the global batch, cut into micro-batches.

        Shares differ by one row at most; all ranks and micro-batches in order are the global batch. A micro-batch has
        at most `size` rows of `pairs.max_length` tokens, and the more, the shorter the request's are. Packed rows are
        as long as the request says; others are padded to the longest, rounded up to a multiple of 8.

        Raises:
            UserError: there are more processes than rows in the batch.
        """
        return [tensors(made) for made in self.arrays(request, rank=rank, world=world, size=size)]

    def advance(self, cursor: Cursor, rows: int, max_length: int) -> tuple[Cursor, int]:
        """The place after so many rows, and their tokens, special ones included. No row is made."""
        return self._stream.advance(cursor, rows, max_length)

    def epochs(self, cursor: Cursor, max_length: int) -> float:
        """How many epochs have passed at a place."""
        return self._stream.epochs(cursor, max_length)

    def check_length(self, max_length: int) -> None:
        """Raise `UserError` where rows of so many tokens have no room for the texts."""
        replace(self._pairs, max_length=max_length)

    def skip(self, cursor: Cursor) -> Cursor:
        """The begin of a block, the present or the next one: where rows of another length can go on."""
        return Cursor(cursor.block + 1) if cursor.row else cursor

    def arrays(self, request: Request, *, rank: int, world: int, size: int | None) -> list[Arrays]:
        """What `micro_batches` gives, as numpy arrays, which one process can send to another."""
        check_world(world, request.rows)
        length = request.max_length
        begin, end = _share(request.rows, rank, world)
        size = end - begin if size is None else max(1, size * self._pairs.max_length // length)
        cursor, _ = self._stream.advance(request.cursor, begin, length)
        return list(self._cut(cursor, end - begin, size, length, request.probability))

    def _cut(self, cursor: Cursor, rows: int, size: int, length: int, probability: float) -> Iterator[Arrays]:
        """The rows from a place on, in arrays of at most `size` rows."""
        assembly = replace(self._assembly, pairs=replace(self._pairs, max_length=length))
        for row in range(0, rows, size):
            count = min(size, rows - row)
            parts = list(self._stream.parts(cursor, count, length))
            draws = [self._draws(part, length) for part in parts]
            yield assembly(instances(parts), np.concatenate(draws, axis=1), probability)
            cursor, _ = self._stream.advance(cursor, count, length)

    def _draws(self, part: Part, length: int) -> Uniform:
        rng = self._blocks.generator(MASKS, part.block)
        return mask_draws(rng, part.begin, part.end, draws=self._assembly.masking.draws, length=length)


def evaluation_batches(
    corpus: SentenceStore,
    vocabulary: Vocabulary,
    *,
    pairs: PairSettings,
    masking: MaskingSettings,
    seed: int,
    size: int,
    rank: int = 0,
    world: int = 1,
    limit: int | None = None,
) -> Iterator[Batch]:
    """The documents of `corpus` once, always with the same pairs and masks, in batches of at most `size` rows.

    All processes together get each of the first `limit` rows once, in equally many batches: where a model is cut up
    between them, a forward pass is one of all. Only one that has no row for a batch goes without it.

    Raises:
        UserError: the corpus has too little for the objective.
    """
    batches = PretrainingBatches(corpus, vocabulary, seed=seed, pairs=pairs, masking=masking)
    rows = batches._stream.first_epoch(limit, pairs.max_length)
    begin, end = _share(rows, rank, world)
    cursor, _ = batches.advance(Cursor(), begin, pairs.max_length)
    number = math.ceil(math.ceil(rows / world) / size)
    cuts = [(end - begin) * batch // number for batch in range(number + 1)]
    for held in (last - first for first, last in pairwise(cuts) if first < last):
        for arrays in batches._cut(cursor, held, held, pairs.max_length, masking.probability):
            yield tensors(arrays)
        cursor, _ = batches.advance(cursor, held, pairs.max_length)


def check_world(world: int, rows: int) -> None:
    """Raise `UserError` where there are more processes than rows in a batch."""
    if world > rows:
        raise UserError(f"a batch of {rows} rows cannot be shared by {world} processes; each needs one at least")


def _share(rows: int, rank: int, world: int) -> tuple[int, int]:
    return rows * rank // world, rows * (rank + 1) // world


def tensors(arrays: Arrays) -> Batch:
    """The arrays of a batch as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
