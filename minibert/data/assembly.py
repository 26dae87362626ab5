"""How does a plan become arrays? [CLS] A [SEP] B [SEP] of each instance, side by side in their rows, then masked.

    input_ids        [CLS] a a [SEP] b [SEP] [CLS] a [SEP] b b [SEP] [PAD]
    token_type_ids     0   0 0   0   1   1     0   0   0   1 1   1     0
    position_ids       0   1 2   3   4   5     0   1   2   3 4   5     0
    sequence_ids       1   1 1   1   1   1     2   2   2   2 2   2     0
    cls_positions      0   6   0 ...           next_sentence_label  0 1 -100 ...

A row with one instance and padding has no `position_ids`, `sequence_ids` and `cls_positions`, and one label; it is as
wide as the longest of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.data.blocks import Booleans, Integers, SentenceStore
from minibert.data.masking import IGNORED, MaskingSettings, mask_tokens
from minibert.data.pairs import PairSettings
from minibert.data.stream import Part
from minibert.data.tokenizer import Vocabulary

Arrays = dict[str, Integers]
Uniform = npt.NDArray[np.float64]

_MULTIPLE = 8
_PHILOX = 4  # numbers that the generator makes at a time


class Instances(NamedTuple):
    """Rows, one below the other: where each instance goes, and its texts."""

    rows: int
    row: Integers
    """[instances], as all that follow."""
    number: Integers
    """0, 1, ... from left to right in a row."""
    a_begin: Integers
    a_end: Integers
    b_begin: Integers
    b_end: Integers
    label: Integers


def instances(parts: Sequence[Part]) -> Instances:
    """The instances of some parts of the stream."""
    held = np.concatenate([np.diff(plan.first_pair[begin : end + 1]) for _, plan, begin, end in parts])
    row = np.repeat(np.arange(len(held)), held)
    ranges = [(plan, slice(plan.first_pair[begin], plan.first_pair[end])) for _, plan, begin, end in parts]
    texts = ("a_begin", "a_end", "b_begin", "b_end", "label")
    return Instances(
        len(held),
        row,
        np.arange(len(row)) - np.repeat(held.cumsum() - held, held),
        *(np.concatenate([getattr(plan, name)[pairs] for plan, pairs in ranges]) for name in texts),
    )


def mask_draws(rng: np.random.Generator, begin: int, end: int, *, draws: int, length: int) -> Uniform:
    """[draws, rows, length]: the uniform numbers for masking the rows `begin` to `end` of a block.

    `rng` is a new Philox generator of the block. Each row has a place of its own among its numbers, so that it is
    masked alike whatever rows are made with it.
    """
    stride = -(-draws * length // _PHILOX)
    philox: Any = rng.bit_generator
    philox.advance(begin * stride)
    numbers = rng.random((end - begin, stride * _PHILOX))[:, : draws * length]
    return numbers.reshape(-1, draws, length).transpose(1, 0, 2)


@dataclass(frozen=True)
class Assembly:
    """Turns instances into arrays; `pairs.max_length` is the length of their rows."""

    corpus: SentenceStore
    vocabulary: Vocabulary
    pairs: PairSettings
    masking: MaskingSettings

    def __call__(self, made: Instances, draws: Uniform, probability: float) -> Arrays:
        """The arrays of some instances; `draws` are those of their rows, and a share `probability` is masked."""
        layout = _lay_out(made, self.pairs)
        sequences, positions, types = np.zeros((3, made.rows, layout.width), np.int64)
        sequences.flat[layout.places] = np.repeat(made.number + 1, layout.sizes)
        positions.flat[layout.places] = layout.inside
        types.flat[layout.places] = layout.inside >= np.repeat(layout.second - layout.starts, layout.sizes)
        ids, continues = self._read(made, layout)
        masked, labels = mask_tokens(
            ids, sequences, continues, draws[:, :, : layout.width], self.vocabulary, self.masking, probability
        )
        arrays = {
            "input_ids": masked,
            "attention_mask": (sequences > 0).astype(np.int64),
            "token_type_ids": types,
            "labels": labels,
        }
        if self.pairs.packed:
            arrays |= {"position_ids": positions, "sequence_ids": sequences}
        return arrays | self._questions(made, layout)

    def _read(self, made: Instances, layout: "_Layout") -> tuple[Integers, Booleans]:
        """[rows, width]: the tokens, and which of them continue the word before."""
        words, ids = self.vocabulary, np.full((made.rows, layout.width), self.vocabulary.pad, np.int64)
        ids.flat[layout.starts] = words.cls
        ids.flat[layout.second - 1] = ids.flat[layout.starts + layout.sizes - 1] = words.sep
        begins, ends = np.concatenate((made.a_begin, made.b_begin)), np.concatenate((made.a_end, made.b_end))
        first = np.concatenate((layout.starts + 1, layout.second))
        ranges = zip(begins.tolist(), ends.tolist(), first.tolist(), (first + ends - begins).tolist(), strict=True)
        texts = [text for text in ranges if text[0] < text[1]]
        flat = ids.reshape(-1)
        for begin, end, start, stop in texts:
            flat[start:stop] = self.corpus.tokens(begin, end)

        marks = getattr(self.corpus, "continues", lambda begin, end: None)
        if marks(*texts[0][:2]) is None:
            return ids, words.continuation[ids]
        continues = np.zeros(ids.size, bool)
        for begin, end, start, stop in texts:
            continues[start:stop] = marks(begin, end)
        return ids, continues.reshape(ids.shape)

    def _questions(self, made: Instances, layout: "_Layout") -> Arrays:
        """What is asked about the two texts of each instance; nothing where there is one."""
        if not self.pairs.has_question:
            return {}
        if not self.pairs.packed:
            return {"next_sentence_label": made.label}
        columns = np.zeros((made.rows, self.pairs.instances_per_row), np.int64)
        labels = np.full_like(columns, IGNORED)
        columns[made.row, made.number] = layout.starts - made.row * layout.width
        labels[made.row, made.number] = made.label
        return {"cls_positions": columns, "next_sentence_label": labels}


class _Layout(NamedTuple):
    """Where instances stand in an array [rows, width], counted through all its rows."""

    width: int
    sizes: Integers
    """[instances]: tokens of each, special ones included."""
    starts: Integers
    """[instances]: the place of its [CLS]."""
    second: Integers
    """[instances]: the place of the first token of B, which is behind the [SEP] of A."""
    places: Integers
    """[tokens]: the place of each token of all instances."""
    inside: Integers
    """[tokens]: how many tokens of the same instance stand before it."""


def _lay_out(made: Instances, pairs: PairSettings) -> _Layout:
    a, b = made.a_end - made.a_begin, made.b_end - made.b_begin
    sizes = a + b + pairs.specials
    before = sizes.cumsum() - sizes
    columns = before - before[made.number == 0][made.row]
    longest = -(-int(sizes.max()) // _MULTIPLE) * _MULTIPLE
    width = pairs.max_length if pairs.packed else min(longest, pairs.max_length)
    starts = made.row * width + columns
    inside = np.arange(sizes.sum()) - np.repeat(before, sizes)
    return _Layout(width, sizes, starts, starts + a + 2, np.repeat(starts, sizes) + inside, inside)
