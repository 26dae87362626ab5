"""What does the model see at step t? Batches as a pure function of (corpus, settings, seed, step).

    epoch 0 in its own order | epoch 1 in its own order | ...     the endless stream of instances
    [ batch 0 ][ batch 1 ][ batch 2 ][ batch 3 ]...               batch t holds the positions from t * batch_size on
    [rank 0|rank 1]                                               its shares, one after the other
    [mb|mb]                                                       a share, cut into micro-batches

Nothing is remembered between steps but plans that could be computed again, so a run can be resumed at any step and
on any number of processes. An instance is masked by numbers of its own that depend on (seed, epoch, instance) alone.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from minibert.data.masking import MaskingSettings, mask_tokens
from minibert.data.pairs import MASKS, SPECIALS, Integers, Pairs, PairSettings, SentenceStore, plan_pairs
from minibert.data.random import generator
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError

Batch = dict[str, Tensor]
"""input_ids, attention_mask, token_type_ids, labels [rows, width] and next_sentence_label [rows], all int64."""

Arrays = dict[str, npt.NDArray[np.int64]]

_MULTIPLE = 8
_PAIRS, _MASKING = PairSettings(), MaskingSettings()


class PretrainingBatches:
    """The batches of a pretraining run.

    `batches[t]` is the global batch of step t = 0, 1, ... without end; `micro_batches` gives one process its share.

    Args:
        corpus: the training documents.
        vocabulary: the ids of the special tokens and of the pieces that continue a word.
        batch_size: instances in a global batch.
        seed: another seed is another order, other pairs, other masks.
        pairs, masking: how texts are paired and tokens masked.

    Raises:
        UserError: the corpus has fewer than two documents.
    """

    def __init__(
        self,
        corpus: SentenceStore,
        vocabulary: Vocabulary,
        *,
        batch_size: int,
        seed: int,
        pairs: PairSettings = _PAIRS,
        masking: MaskingSettings = _MASKING,
    ) -> None:
        self.batch_size = batch_size
        self._epochs = _Epochs(corpus, pairs, seed)
        self._collate = partial(_collate, vocabulary=vocabulary, settings=masking, max_length=pairs.max_length)
        self.steps_per_epoch = -(-self._epochs.begin(1) // batch_size)
        """Steps in the first epoch, the last one begun counted; other epochs differ a little."""

    def __getitem__(self, step: int) -> Batch:
        """The global batch of `step`, whole."""
        return self.micro_batches(step)[0]

    def micro_batches(self, step: int, *, rank: int = 0, world: int = 1, size: int | None = None) -> list[Batch]:
        """The share of process `rank` of `world` in the global batch, cut into micro-batches of at most `size` rows.

        Shares differ by one row at most; all ranks and micro-batches in order are the global batch. Each micro-batch
        is padded at the right to its longest row, rounded up to a multiple of 8, at most `max_length`.

        Raises:
            UserError: there are more processes than rows in a batch.
        """
        return [_tensors(arrays) for arrays in self._arrays(step, rank=rank, world=world, size=size)]

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, to which the first instance of a step belongs."""
        return self._epochs.locate(step * self.batch_size)

    def _arrays(self, step: int, *, rank: int, world: int, size: int | None) -> list[Arrays]:
        _check_world(world, self.batch_size)
        begin, end = _share(self.batch_size, rank, world)
        first = step * self.batch_size
        instances = list(self._epochs.instances(first + begin, first + end))
        size = size or len(instances)
        return [self._collate(instances[row : row + size]) for row in range(0, len(instances), size)]


def prefetch(
    batches: PretrainingBatches, steps: Sequence[int], *, rank: int, world: int, size: int | None, workers: int
) -> Iterator[list[Batch]]:
    """The micro-batches of one process for each of `steps`; `workers` processes make them beforehand, 0 is none.

    The values are the same for any number of workers.
    """
    _check_world(world, batches.batch_size)
    make = partial(batches._arrays, rank=rank, world=world, size=size)
    made: Iterable[list[Arrays]] = map(make, steps)
    if workers and len(steps):
        batches.epoch_of(steps[0])  # plans once, before the workers are forked
        # Arrays are sent, for each tensor would hold an open file. The loader has a generator of its own, for otherwise
        # it draws from the global one, and that changes dropout.
        made = DataLoader(
            steps,  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=make,
            num_workers=workers,
            generator=torch.Generator(),
        )
    for arrays in made:
        yield [_tensors(micro) for micro in arrays]


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

    All processes together get each of the first `limit` instances once. Their numbers of batches may differ, and be 0.

    Raises:
        UserError: the corpus has fewer than two documents.
    """
    plan = plan_pairs(corpus, pairs, seed=seed, epoch=0)
    rows = range(len(plan))[:limit]
    begin, end = _share(len(rows), rank, world)
    for row in range(begin, end, size):
        instances = list(_read(corpus, plan, rows[row : min(row + size, end)], seed=seed, epoch=0))
        yield _tensors(_collate(instances, vocabulary, masking, pairs.max_length))


def _check_world(world: int, batch_size: int) -> None:
    if world > batch_size:
        raise UserError(f"a batch of {batch_size} rows cannot be shared by {world} processes; each needs one at least")


def _share(rows: int, rank: int, world: int) -> tuple[int, int]:
    return rows * rank // world, rows * (rank + 1) // world


def _tensors(arrays: Arrays) -> Batch:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class _Instance(NamedTuple):
    first: Integers
    second: Integers
    is_random: bool
    masks: np.random.Generator


def _read(corpus: SentenceStore, pairs: Pairs, rows: Iterable[int], *, seed: int, epoch: int) -> Iterator[_Instance]:
    for i in rows:
        yield _Instance(
            first=corpus.tokens(int(pairs.a_begin[i]), int(pairs.a_end[i])),
            second=corpus.tokens(int(pairs.b_begin[i]), int(pairs.b_end[i])),
            is_random=bool(pairs.is_random[i]),
            masks=generator(seed, epoch, MASKS, i),
        )


class _Epochs:
    """The endless stream of instances: epoch after epoch, the last two plans kept."""

    def __init__(self, corpus: SentenceStore, settings: PairSettings, seed: int) -> None:
        self._corpus, self._settings, self._seed = corpus, settings, seed
        self._begins = [0]
        self._plans: dict[int, Pairs] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # a worker that is not forked plans again, which is less than to copy

    def plan(self, epoch: int) -> Pairs:
        """The pairs of an epoch."""
        if epoch not in self._plans:
            self._plans[epoch] = plan_pairs(self._corpus, self._settings, seed=self._seed, epoch=epoch)
            if len(self._plans) > 2:
                del self._plans[next(iter(self._plans))]
        return self._plans[epoch]

    def begin(self, epoch: int) -> int:
        """The position at which an epoch begins; all before it are planned once, and their sizes kept."""
        while epoch >= len(self._begins):
            self._begins.append(self._begins[-1] + len(self.plan(len(self._begins) - 1)))
        return self._begins[epoch]

    def locate(self, position: int) -> int:
        """The epoch that a position belongs to."""
        while self._begins[-1] <= position:
            self.begin(len(self._begins))
        return bisect_right(self._begins, position) - 1

    def instances(self, begin: int, end: int) -> Iterator[_Instance]:
        """The instances at the positions `begin` to `end` of the stream."""
        while begin < end:
            epoch = self.locate(begin)
            start, stop = self.begin(epoch), min(end, self.begin(epoch + 1))
            rows = range(begin - start, stop - start)
            yield from _read(self._corpus, self.plan(epoch), rows, seed=self._seed, epoch=epoch)
            begin = stop


def _collate(
    instances: Sequence[_Instance], vocabulary: Vocabulary, settings: MaskingSettings, max_length: int
) -> Arrays:
    """Instances -> [CLS] A [SEP] B [SEP], masked, one below the other in padded arrays."""
    first = np.array([len(i.first) for i in instances])[:, None]
    lengths = first + np.array([len(i.second) for i in instances])[:, None] + SPECIALS
    width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, max_length)
    input_ids = np.full((len(instances), width), vocabulary.pad, dtype=np.int64)
    draws = np.ones((3, len(instances), width))
    cls, sep = [vocabulary.cls], [vocabulary.sep]
    for row, (instance, n) in enumerate(zip(instances, lengths[:, 0].tolist(), strict=True)):
        input_ids[row, :n] = np.concatenate((cls, instance.first, sep, instance.second, sep))
        draws[:, row, :n] = instance.masks.random((3, n))

    masked, labels = mask_tokens(input_ids, draws, vocabulary, settings)
    position = np.arange(width)
    return {
        "input_ids": masked,
        "attention_mask": (position < lengths).astype(np.int64),
        "token_type_ids": ((position >= first + 2) & (position < lengths)).astype(np.int64),
        "labels": labels,
        "next_sentence_label": np.array([i.is_random for i in instances], dtype=np.int64),
    }
