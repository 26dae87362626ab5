"""Layers in which every token looks at every other: attention, then a feed-forward network.

    hidden ──┬── attention ────── + ── norm ──┬── feed_forward ── + ── norm ── hidden
             └────────────────────┘           └───────────────────┘

Names that each of `layers.0`, `layers.1`, ... promises to those who attach from outside (adapters):

    attention.query, attention.key, attention.value, attention.output     linear maps H -> H
    feed_forward.up, feed_forward.down                                    linear maps H -> I and I -> H
    attention, feed_forward                                               sublayers, before dropout and the residual sum

What stands at a seam is [B, L, H], and in the last layer behind the attention [N, H]: the tokens that are read.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.attention import MultiHeadAttention
from minibert.dropout import Dropout
from minibert.errors import UserError

Activation = Callable[[Tensor], Tensor]


class Encoder(nn.Module):
    """Encoder layers, one after the other  (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, layers: list["EncoderLayer"]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden [B, L, H], mask broadcastable to [B, heads, L, L] -> [B, L, H]."""
        return self.begin(hidden, mask).everywhere

    def begin(self, hidden: Tensor, mask: Tensor | None = None) -> "Encoded":
        """All layers but the last, which waits to hear what is read; arguments as those of `forward`."""
        *before, last = self.layers
        for layer in before:
            hidden = layer(hidden, mask)
        return Encoded(last, hidden, mask)


class Encoded:
    """A batch in front of the last layer: that is computed for the tokens that are read.

    Keys and values are those of all tokens; behind the attention nothing passes from one token to another.
    """

    def __init__(self, last: nn.Module, hidden: Tensor, mask: Tensor | None):
        self._last, self._hidden, self._mask = last, hidden, mask
        self._everywhere: Tensor | None = None

    @property
    def everywhere(self) -> Tensor:
        """All tokens, [B, L, H]; computed when it is first asked for."""
        if self._everywhere is None:
            self._everywhere = self._last(self._hidden, self._mask)
        return self._everywhere

    def at(self, *places: Tensor) -> list[Tensor]:
        """Some tokens, by their places row · L + column: for each tensor of places [...] the states [..., H]."""
        states: Tensor = self._last(self._hidden, self._mask, torch.cat([one.flatten() for one in places]))
        parts = states.split([one.numel() for one in places])
        return [part.view(*one.shape, states.size(1)) for part, one in zip(parts, places, strict=True)]

    def first(self, cls_positions: Tensor | None = None) -> Tensor:
        """The place of the first token of each row, [B]; or those of the columns `cls_positions` [B, S]."""
        rows, length, _ = self._hidden.shape
        starts = torch.arange(0, rows * length, length, device=self._hidden.device)
        return starts if cls_positions is None else starts[:, None] + cls_positions


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
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        """hidden [B, L, H] -> [B, L, H], or for the tokens at `places` [N] of B · L alone -> [N, H]."""
        attended = self.attention(hidden, mask=mask, places=places)
        if places is not None:
            hidden = hidden.flatten(0, 1).index_select(0, places)
        hidden = self.attention_norm(hidden + self.dropout(attended))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class FeedForward(nn.Module):
    """FFN(x) = W₂ act(W₁ x + b₁) + b₂  (Vaswani et al. 2017, equation 2)."""

    def __init__(self, size: int, intermediate: int, activation: Activation):
        super().__init__()
        self.up = nn.Linear(size, intermediate)
        self.activation = activation
        self.down = nn.Linear(intermediate, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> [..., H]."""
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
