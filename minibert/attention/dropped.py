"""Scaled dot-product attention whose weights are dropped, for the CPU, where the fused kernel knows no dropout.

With W = softmax(QKᵀ/√D), M of 0 and 1, and a scale f:   context = f (W∘M) V
Backwards, as Σ_k dW_k W_k is the product of the context with its gradient (Dao et al. 2022, section 3.1, equation 4):
    dV = f (W∘M)ᵀ g     dW = f M∘(g Vᵀ)     dS = W∘(dW - g·context)     dQ = dS K/√D     dK = dSᵀ Q/√D
"""

import math
from typing import Any

import torch
from torch import Tensor

from minibert.dropout import draw, kept


def dropped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float) -> Tensor:
    """query [B, h, Q, D], key and value [B, h, K, D], mask Boolean -> the context [B, h, Q, D], 0 where none may look.

    0 < probability < 1. Remembers W and the bits of M, six bytes for each pair in float32.
    """
    context: Tensor = _Dropped.apply(query, key, value, mask, probability)  # type: ignore[no-untyped-call]
    return context


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            query = query / math.sqrt(query.size(-1))
            weights = query @ key.mT
            if mask is not None:
                weights += torch.zeros_like(mask, dtype=weights.dtype).masked_fill_(~mask, _lowest(weights.dtype))
            torch.softmax(weights, -1, out=weights)
            bits = draw(weights.shape)
            keep, scale = kept(bits, probability, weights.dtype)
            reach = weights.new_full((1,), scale) if mask is None else mask.any(-1, keepdim=True) * scale
            context = (keep.mul_(weights) @ value).mul_(reach)
        ctx.save_for_backward(query, key, value, weights, bits, context, reach)
        ctx.probability = probability
        return context

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, bits, context, reach = ctx.saved_tensors
        keep, _ = kept(bits, ctx.probability, weights.dtype)
        along = (gradients[0] * context).sum(-1, keepdim=True)
        gradient = (gradients[0] * reach).to(weights.dtype)
        to_scores = (gradient @ value.mT).mul_(keep).sub_(along).mul_(weights)
        to_value = keep.mul_(weights).mT @ gradient
        to_query = (to_scores @ key) / math.sqrt(query.size(-1))
        return to_query, to_scores.mT @ query, to_value, None, None


def _lowest(dtype: torch.dtype) -> float:
    """Half of it, as what is added to a score must not overflow."""
    return torch.finfo(dtype).min / 2
