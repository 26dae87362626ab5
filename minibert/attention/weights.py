"""How sharply does a query choose among keys? From scores to weights that sum to 1.

A query that may look at nothing gets weights of 0, never NaN, whatever the dtype.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Weighting = Callable[[Tensor, Tensor | None], Tensor]


def soft(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the keys that the mask allows  (Bahdanau et al. 2015, equation 6).

    scores [B, heads, Q, K], mask Boolean and broadcastable to it. The sum is taken in float32 or wider, and scores
    that overflowed to infinity count as half the largest number there.
    """
    weights = _allowed(scores, mask).softmax(-1)
    return (weights if mask is None else weights * mask).to(scores.dtype)


def hard(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """All weight on the best key; the gradient is that of `soft`  (straight-through: Bengio et al. 2013, section 4)."""
    weights = soft(scores, mask)
    best = F.one_hot(_allowed(scores, mask).argmax(-1), weights.size(-1)).to(weights.dtype)
    if mask is not None:
        best = best * mask
    return best + (weights - weights.detach())


WEIGHTS: dict[str, Weighting] = {"soft": soft, "hard": hard}
"""Each weighting by its name."""


def _allowed(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Finite scores in float32 or wider; what the mask forbids lies below all that it allows."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    lowest = torch.finfo(wide.dtype).min
    wide = wide.clamp(lowest / 2, -lowest / 2)
    return wide if mask is None else wide.masked_fill(~mask, lowest)
