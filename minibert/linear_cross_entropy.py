"""The loss over a large vocabulary without its logits: they are made, used and forgotten some rows at a time."""

from typing import Any

import torch
from torch import Tensor

from minibert.objectives import IGNORED, Measure, check_labels

_ROWS = {"cpu": 256}
"""Rows of logits that are there at the same time, by device; more where the hidden size is larger still."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Measure:
    """-Σ ln softmax(hidden Wᵀ + b)[label] over the labels that are not -100.

    hidden [N, H], weight [V, H], bias [V], labels [N]. The gradients are computed with the loss, while the softmax of a
    block of rows is at hand: (softmax - onehot(label)) W, and so on  (the chunks of Hsu et al. 2024, "Liger Kernel").
    They can be asked for once, and have no derivatives.

    Raises `ValueError` (on the CPU) for a label that is neither -100 nor one of 0 .. V-1.
    """
    check_labels(labels, len(weight))
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, labels)  # type: ignore[no-untyped-call]
    return Measure(total, (labels != IGNORED).sum())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            blocks = _Blocks(hidden, weight, bias, dtype, ctx.needs_input_grad)
            total = blocks.loss(labels)
        ctx.gradients = blocks.gradients
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy was asked twice for its gradients; they are there once")
        computed, ctx.gradients = ctx.gradients, None
        return *(None if one is None else one.mul_(gradients[0]) for one in computed), None


class _Blocks:
    """Goes through the rows in blocks, and gathers what each gives to the gradients that are needed."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, needed: tuple[bool, ...]):
        self._hidden, self._weight, self._bias = hidden.to(dtype), weight.to(dtype), bias.to(dtype)
        self._wide = torch.promote_types(dtype, torch.float32)
        given = (hidden, weight, bias)
        self.gradients = [torch.zeros_like(one) if need else None for one, need in zip(given, needed, strict=False)]

    def loss(self, labels: Tensor) -> Tensor:
        """The sum of the losses; the gradients are complete then."""
        size = max(_ROWS.get(labels.device.type, 2048), self._hidden.size(1))
        total = torch.zeros((), dtype=self._wide, device=labels.device)
        logits = self._hidden.new_empty(min(size, len(labels)), len(self._weight))
        for begin in range(0, len(labels), size):
            rows = slice(begin, begin + size)
            counted, targets = labels[rows] != IGNORED, labels[rows].clamp(min=0)[:, None]
            block = torch.addmm(self._bias, self._hidden[rows], self._weight.T, out=logits[: len(targets)])
            wide = block if block.dtype == self._wide else torch.empty_like(block, dtype=self._wide)
            torch.log_softmax(block, 1, dtype=self._wide, out=wide)
            total -= wide.gather(1, targets).squeeze(1) @ counted.to(self._wide)
            if any(one is not None for one in self.gradients):
                torch.exp(wide, out=block).scatter_add_(1, targets, block.new_full(targets.shape, -1.0))
                self._gather(block, rows, counted.to(block.dtype))
        return total

    def _gather(self, errors: Tensor, rows: slice, counted: Tensor) -> None:
        """errors [n, V] are softmax - onehot(label); rows that are not counted give nothing."""
        to_hidden, to_weight, to_bias = self.gradients
        if to_hidden is not None:
            to_hidden[rows] = (errors @ self._weight) * counted[:, None]
        if to_weight is not None:
            hidden = self._hidden[rows] * counted[:, None]
            if to_weight.dtype == hidden.dtype:
                to_weight.addmm_(errors.T, hidden)
            else:
                to_weight += errors.T @ hidden
        if to_bias is not None:
            to_bias += errors.T @ counted
