"""What must be computed, and how fast can this machine compute? Their quotient is the utilisation.

Needed is what an encoder cannot do without: products for real tokens, attention within each sequence, the last layer
for the tokens that are read ([CLS] and the masked ones; keys and values for all), the vocabulary for the masked ones.
Norms, activations, dropout, the optimizer and whatever is computed twice are not counted as work, only as time.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from parts.shapes import Shape

_SECONDS, _TURN = 0.3, 0.02  # that a product is repeated for, in all and in a turn
_SQUARES = {"cpu": 2048, "cuda": 8192}


class Reading(NamedTuple):
    """A sequence, and how much of it is to be predicted."""

    length: int
    masked: int


def needed(shape: Shape, sequences: Sequence[Reading]) -> int:
    """Floating-point operations of a pretraining step, MLM and NSP.

    A product [m, k] x [k, n] takes 2 m n k; backward takes two more of them for each one of forward.
    """
    layers = (shape.layers - 1) * sum(_layer(shape, length, read=length) for length, _ in sequences)
    last = sum(_layer(shape, length, read=masked + 1) for length, masked in sequences)
    word = shape.hidden * (shape.hidden + shape.vocabulary)  # the head's transform, and its decoder
    pooled = shape.hidden * (shape.hidden + 2)  # the pooler, and next sentence or not
    heads = word * sum(masked for _, masked in sequences) + pooled * len(sequences)
    return 3 * 2 * (layers + last + heads)


def attention_share(shape: Shape, sequences: Sequence[Reading]) -> float:
    """The part of the needed work that grows with the square of the length: scores, and weights times values."""
    without = shape.layers * 2 * shape.hidden
    reads = [((shape.layers - 1) * length + masked + 1) / shape.layers for length, masked in sequences]
    squares = sum(length * read for (length, _), read in zip(sequences, reads, strict=True))
    return 3 * 2 * without * squares / needed(shape, sequences)


def best_rate(shape: Shape, tokens: int, masked: int, *, dtype: torch.dtype, device: str) -> float:
    """Floating-point operations a second of the fastest product among the model's own and a large square."""
    hidden, inner, square = shape.hidden, shape.inner, _SQUARES[device]
    own = [(tokens, hidden, hidden), (tokens, hidden, 3 * hidden), (tokens, hidden, inner), (tokens, inner, hidden)]
    backward = [(hidden, tokens, inner), (inner, tokens, hidden)]
    vocabulary = (masked, hidden, shape.vocabulary)
    return max(_rate(*sizes, dtype, device) for sizes in [*own, *backward, vocabulary, (square,) * 3])


def wait(device: str) -> None:
    """Until the device has done what it was told to; a CPU has."""
    if device == "cuda":
        torch.cuda.synchronize()


def _layer(shape: Shape, length: int, *, read: int) -> int:
    """Multiplications of a layer, forward: two projections for all tokens, the others for those that are read."""
    projections = 2 * shape.hidden**2 * (length + read)
    return projections + 2 * shape.hidden * length * read + 2 * shape.hidden * shape.inner * read


@torch.no_grad()
def _rate(rows: int, inner: int, columns: int, dtype: torch.dtype, device: str) -> float:
    """The best of several turns, each long enough for the clock."""
    left, right = (torch.randn(size, device=device, dtype=dtype) for size in ((rows, inner), (columns, inner)))
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    operations, best, times = 2 * rows * inner * columns, 0.0, 1
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        wait(device)
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right.T, out=out)
        wait(device)
        seconds = time.perf_counter() - start
        best = max(best, times * operations / seconds)
        times = times if seconds > _TURN else 2 * times
    return best
