"""Dropout that does not wait for random numbers: on the CPU 16 random bits decide over each, not a number in 0 .. 1."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Sets each number to 0 with a probability, and scales the others so that the mean stays; only in training.

    Srivastava et al. 2014, in the inverted form. The draws are those of `torch.manual_seed`.
    """

    def __init__(self, probability: float):
        super().__init__()
        self.p = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return drop(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"


def drop(x: Tensor, probability: float) -> Tensor:
    """Drop numbers of `x`. On the CPU the probability is taken to the nearest of 65,536 steps."""
    if probability in (0, 1) or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability)
    lost, scale = draw(x.shape, probability)
    dropped: Tensor = _Drop.apply(x, lost, scale)  # type: ignore[no-untyped-call]
    return dropped


def draw(shape: torch.Size, probability: float) -> tuple[Tensor, float]:
    """On the CPU: which numbers are lost (Boolean), and what the others are to be multiplied by."""
    few = round(probability * _LEVELS)
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = words.view(torch.int16)[: shape.numel()].view(shape)
    return bits < few - _LEVELS // 2, _LEVELS / (_LEVELS - few)


class _Drop(torch.autograd.Function):
    """x · scale where it is not lost; only the Booleans are remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lost: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(lost)
        ctx.scale = scale
        return torch.where(lost, 0.0, x).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (lost,) = ctx.saved_tensors
        return torch.where(lost, 0.0, gradients[0]).mul_(ctx.scale), None, None
