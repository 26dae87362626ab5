"""Layers in which every token looks at every other: attention, then a feed-forward network.

    hidden ──┬── attention ────── + ── norm ──┬── feed_forward ── + ── norm ── hidden
             └────────────────────┘           └───────────────────┘

Names that each of `layers.0`, `layers.1`, ... promises to those who attach from outside (adapters):

    attention.query, attention.key, attention.value, attention.output     linear maps H -> H
    feed_forward.up, feed_forward.down                                    linear maps H -> I and I -> H
    attention, feed_forward                                               sublayers, before dropout and the residual sum
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.attention import MultiHeadAttention
from minibert.errors import UserError

Activation = Callable[[Tensor], Tensor]


class Encoder(nn.Module):
    """Encoder layers, one after the other  (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, layers: list["EncoderLayer"]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden [B, L, H], mask broadcastable to [B, heads, L, L] -> [B, L, H]."""
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each added to its input, then normalised (post-norm, as in BERT)."""

    def __init__(
        self, attention: MultiHeadAttention, feed_forward: "FeedForward", size: int, eps: float, dropout: float
    ):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(size, eps=eps)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.LayerNorm(size, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden [B, L, H] -> [B, L, H]."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, mask=mask)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class FeedForward(nn.Module):
    """FFN(x) = W₂ act(W₁ x + b₁) + b₂  (Vaswani et al. 2017, equation 2)."""

    def __init__(self, size: int, intermediate: int, activation: Activation):
        super().__init__()
        self.up = nn.Linear(size, intermediate)
        self.activation = activation
        self.down = nn.Linear(intermediate, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, L, H] -> [B, L, H]."""
        return self.down(self.activation(self.up(hidden)))


def activation(name: str) -> Activation:
    """The function that a config calls `hidden_act`; "gelu" is the erf form x Φ(x)  (Hendrycks & Gimpel 2016).

    Raises `UserError` for a name that is not known.
    """
    if name not in _ACTIVATIONS:
        raise UserError(f"hidden_act: expected one of {', '.join(_ACTIVATIONS)}, got {name}")
    return _ACTIVATIONS[name]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}
