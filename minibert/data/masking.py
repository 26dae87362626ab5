"""Which tokens must the model guess? 15 % are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay.

input      [CLS] the cat  sat  on the mat  [SEP] [PAD]
masked     [CLS] the cat [MASK] on the dog [SEP] [PAD]
labels      -100 ...      sat  ...     mat  ...   -100
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

Integers = npt.NDArray[np.integer[Any]]
Booleans = npt.NDArray[np.bool_]
Uniform = npt.NDArray[np.float64]

IGNORED = -100
"""The label of a token that is not to be guessed."""


@dataclass(frozen=True)
class MaskingSettings:
    """How many tokens are chosen, and what becomes of them."""

    probability: UnitInterval = 0.15
    """Share of the tokens to guess; each instance has at least one."""

    mask_share: UnitInterval = 0.8
    """Share of the chosen tokens that become [MASK]."""

    random_share: UnitInterval = 0.1
    """Share of the chosen tokens that become a random token; the rest stay as they are."""

    unit: Literal["token", "word"] = "token"
    """Choose single tokens, or whole words with all their pieces."""

    max_predictions: PositiveInt | None = None
    """At most so many tokens to guess in an instance; no limit where it is null."""

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"mask_share {self.mask_share} and random_share {self.random_share} are more than the whole together"
            )


def mask_tokens(
    input_ids: Integers, draws: Uniform, vocabulary: Vocabulary, settings: MaskingSettings
) -> tuple[Integers, Integers]:
    """The masked ids and the labels, both [rows, width]; a row depends on its own ids and draws alone.

    Args:
        input_ids: [rows, width], padded with `vocabulary.pad`.
        draws: [3, rows, width], uniform in [0, 1): which tokens are chosen, what becomes of each, its replacement.
        vocabulary: says which ids are special: they are never chosen and never a replacement, at any probability.
        settings: how many tokens are chosen, and what becomes of them.

    A row of n tokens, special ones included, has max(1, round(n * probability)) to guess, at most `max_predictions`
    and at most its ordinary tokens (google-research/bert, create_pretraining_data.py). Whole words are taken in
    random order where they still fit; if none fits, the first is taken all the same. A row of special tokens only has
    nothing to guess.
    """
    which, fate, replacement = draws
    chosen = _choose(input_ids, which, vocabulary, settings)
    hidden = chosen & (fate < settings.mask_share)
    replaced = chosen & ~hidden & (fate < settings.mask_share + settings.random_share)
    ordinary = np.flatnonzero(~vocabulary.special)

    masked = input_ids.copy()
    masked[hidden] = vocabulary.mask
    masked[replaced] = ordinary[(replacement[replaced] * len(ordinary)).astype(np.int64)]
    return masked, np.where(chosen, input_ids, IGNORED)


def _choose(input_ids: Integers, draws: Uniform, vocabulary: Vocabulary, settings: MaskingSettings) -> Booleans:
    """[rows, width]: True where a token is to be guessed."""
    ordinary = ~vocabulary.special[input_ids]
    starts = ordinary if settings.unit == "token" else ordinary & ~_continues(input_ids, ordinary, vocabulary)
    word = np.maximum(np.cumsum(starts, axis=1) - 1, 0)  # the number of the word that a token belongs to
    rows = np.arange(len(input_ids))[:, None]

    sizes = np.zeros_like(word)
    np.add.at(sizes, (rows, word), ordinary)
    keys = np.full(word.shape, np.inf)
    keys[np.nonzero(starts)[0], word[starts]] = draws[starts]
    order = np.argsort(keys, axis=1)

    taken = np.zeros_like(starts)
    taken[rows, order] = _take(sizes[rows, order], _quota(input_ids != vocabulary.pad, settings))
    return ordinary & taken[rows, word]


def _continues(input_ids: Integers, ordinary: Booleans, vocabulary: Vocabulary) -> Booleans:
    """True for a piece of a word whose piece before stands in the row as well."""
    continues = vocabulary.continuation[input_ids]
    continues[:, 1:] &= ordinary[:, :-1]
    continues[:, 0] = False
    return continues


def _quota(tokens: Booleans, settings: MaskingSettings) -> Integers:
    wanted = np.maximum(1, np.rint(tokens.sum(axis=1) * settings.probability).astype(np.int64))
    return wanted if settings.max_predictions is None else np.minimum(wanted, settings.max_predictions)


def _take(sizes: Integers, quota: Integers) -> Booleans:
    """[rows, words] in the order in which words are drawn: True for a word that fits into what is left of the quota."""
    taken = np.zeros(sizes.shape, dtype=bool)
    left = quota.copy()
    for column in range(sizes.shape[1]):
        fits = sizes[:, column] <= left
        taken[:, column] = fits
        left -= sizes[:, column] * fits
        if not left.any():
            break
    taken[left == quota, 0] = True
    return taken
