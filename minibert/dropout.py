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
    dropped: Tensor = _Drop.apply(x, probability)  # type: ignore[no-untyped-call]
    return dropped


def draw(shape: torch.Size) -> Tensor:
    """16 random bits for each number, on the CPU, as int16."""
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    return words.view(torch.int16)[: shape.numel()].view(shape)


def kept(bits: Tensor, probability: float, dtype: torch.dtype) -> tuple[Tensor, float]:
    """1 for what stays and 0 for what is dropped, in a type that multiplies fast; and the scale that keeps the mean."""
    lost = round(probability * _LEVELS)
    return torch.ge(bits, lost - _LEVELS // 2, out=bits.new_empty(bits.shape, dtype=dtype)), _LEVELS / (_LEVELS - lost)


class _Drop(torch.autograd.Function):
    """x · kept · scale; only the bits are remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        bits = draw(x.shape)
        ctx.save_for_backward(bits)
        ctx.probability = probability
        keep, scale = kept(bits, probability, x.dtype)
        return keep.mul_(x).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        keep, scale = kept(bits, ctx.probability, gradients[0].dtype)
        return keep.mul_(gradients[0]).mul_(scale), None
