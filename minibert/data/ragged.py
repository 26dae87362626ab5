"""How do inputs of many lengths fill few rows? The longest first, each where it leaves the least room.

    input_ids        [CLS] a a [SEP] b b [SEP] [CLS] c [SEP] [PAD] ...       inputs of 7 and 3 tokens in a row
    token_type_ids     0   0 0   0   1 1   1     0   0   0     0
    position_ids       0   1 2   3   4 5   6     0   1   2     0
    sequence_ids       1   1 1   1   1 1   1     2   2   2     0
    cls_positions      0   7                                                 [rows, inputs in a row at most]
    labels             1   0                                                 the same, -100 where there is no input

A model answers with one vector for each of the labels' places; `Packed.in_order` puts the answers back in order.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.data.assembly import Arrays
from minibert.data.batches import Batch, tensors
from minibert.data.blocks import Integers
from minibert.data.masking import IGNORED

_MULTIPLE = 8
_DEAR = 512
"""Attention to so many tokens costs a token as much as all else: measured at a width of 384, on two CPU cores."""
_TRIES = 8
"""Widths that are tried out, at most; with twice as many, rows were no fuller."""


@dataclass(frozen=True)
class Inputs:
    """Inputs one behind the other, each [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

    input_ids: Integers
    """[tokens], as the segments that follow."""
    token_type_ids: Integers
    offsets: npt.NDArray[np.int64]
    """[inputs + 1]: tokens `[i]` to `[i + 1]` are input i."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[inputs]: the tokens of each."""
        return np.diff(self.offsets)


class Packed(NamedTuple):
    """A batch, and where in it the answer to each input is given."""

    batch: Batch
    """input_ids, attention_mask, token_type_ids, position_ids, sequence_ids [R, W], cls_positions [R, S], and labels
    [R, S] where there are any; all int64."""
    places: Tensor
    """[inputs]: counted through the R · S places of `cls_positions`."""

    def in_order(self, answers: Tensor) -> Tensor:
        """[R, S, ...] -> [inputs, ...], in the order in which the inputs were chosen."""
        return answers.flatten(0, 1)[self.places.to(answers.device)]


class Layout(NamedTuple):
    """Where each input stands in rows of one width."""

    rows: int
    width: int
    row: Integers
    """[inputs], as all that follow."""
    column: Integers
    """Where its first token stands."""
    number: Integers
    """0, 1, ... from left to right in a row."""


def pack(
    inputs: Inputs, chosen: npt.NDArray[np.int64], *, pad_id: int, labels: npt.NDArray[np.int64] | None = None
) -> Packed:
    """Some of the inputs side by side in few rows; `labels` are those of all inputs.

    None may be chosen, for a process may have no share of a small batch: there are no rows then.
    """
    layout = lay_out(inputs.lengths[chosen])
    arrays = _tokens(inputs, chosen, layout, pad_id)
    columns = np.zeros((layout.rows, 1 + int(layout.number.max(initial=0))), np.int64)
    columns[layout.row, layout.number] = layout.column
    arrays["cls_positions"] = columns
    if labels is not None:
        arrays["labels"] = np.full_like(columns, IGNORED)
        arrays["labels"][layout.row, layout.number] = labels[chosen]
    return Packed(tensors(arrays), torch.from_numpy(layout.row * columns.shape[1] + layout.number))


def lay_out(lengths: npt.NDArray[np.int64]) -> Layout:
    """The cheapest rows for inputs of these lengths, a multiple of 8 wide.

    All tokens cost the same, padding too, but for attention, which grows with the width: rows * width * (512 + width).
    """
    if not len(lengths):
        return Layout(0, _MULTIPLE, *np.zeros((3, 0), np.int64))
    order = np.argsort(-lengths, kind="stable")
    longest_first = lengths[order].tolist()
    best: tuple[float, int, list[int]] = (np.inf, 0, [])
    for least, width in _widths(lengths):
        if least >= best[0]:
            break
        rows = _best_fit(longest_first, width)
        best = min(best, (_cost(1 + max(rows), width), width, rows))
    _, width, rows = best
    row = np.empty_like(lengths)
    row[order] = rows
    return Layout(1 + max(rows), width, row, *_inside(row, lengths))


def by_length(inputs: Inputs, size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Every input once, those of like lengths together, at most `size` of them: for reading, where any order will do.

    Inputs that are as long as each other lose least, for the longest of a batch decides how wide its rows are.
    """
    order = np.argsort(inputs.lengths, kind="stable")
    return (order[begin : begin + size] for begin in range(0, len(order), size))


def _tokens(inputs: Inputs, chosen: npt.NDArray[np.int64], layout: Layout, pad_id: int) -> Arrays:
    """The arrays [rows, width]."""
    lengths = inputs.lengths[chosen]
    read = _ranges(inputs.offsets[chosen], lengths)
    write = _ranges(layout.row * layout.width + layout.column, lengths)
    ids = np.full((layout.rows, layout.width), pad_id, np.int64)
    types, positions, sequences = np.zeros((3, *ids.shape), np.int64)
    ids.flat[write], types.flat[write] = inputs.input_ids[read], inputs.token_type_ids[read]
    positions.flat[write] = _ranges(np.zeros_like(lengths), lengths)
    sequences.flat[write] = np.repeat(layout.number + 1, lengths)
    return {
        "input_ids": ids,
        "attention_mask": (sequences > 0).astype(np.int64),
        "token_type_ids": types,
        "position_ids": positions,
        "sequence_ids": sequences,
    }


def _widths(lengths: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """What rows of a width cost at least, and the width; the cheapest first."""
    total, longest = int(lengths.sum()), int(lengths.max())
    widths = _MULTIPLE * np.arange(-(-longest // _MULTIPLE), 1 - (-total // _MULTIPLE))
    least = _cost(-(-total // widths), widths)
    cheapest = np.argsort(least, kind="stable")[:_TRIES]
    return zip(least[cheapest].tolist(), widths[cheapest].tolist(), strict=True)


def _cost(rows: Any, width: Any) -> Any:
    """Of numbers or of arrays of them."""
    return rows * width * (_DEAR + width)


def _best_fit(longest_first: list[int], width: int) -> list[int]:
    """The row of each input: that where it leaves the least room, or else a new one  (best-fit decreasing)."""
    rooms: list[tuple[int, int]] = []
    held = []
    for length in longest_first:
        place = bisect_left(rooms, (length, 0))
        room, row = rooms.pop(place) if place < len(rooms) else (width, len(rooms))
        insort(rooms, (room - length, row))
        held.append(row)
    return held


def _inside(row: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """How many tokens, and how many inputs, stand before each input in its row."""
    order = np.argsort(row, kind="stable")
    tokens, inputs = lengths[order].cumsum() - lengths[order], np.arange(len(row))
    first = np.searchsorted(row[order], row[order])
    column, number = np.empty((2, len(row)), np.int64)
    column[order], number[order] = tokens - tokens[first], inputs - first
    return column, number


def _ranges(begins: Integers, lengths: Integers) -> Integers:
    """begin, begin + 1, ... of each range, all on end."""
    before = lengths.cumsum() - lengths
    return np.arange(lengths.sum()) + np.repeat(begins - before, lengths)
